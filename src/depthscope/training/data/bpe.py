"""Byte-level BPE (Sennrich et al. 2016; on bytes, Radford et al. 2019): pieces of words as ids, by tokenizers."""

from array import array
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from depthscope.errors import MissingExtraError
from depthscope.extras import install
from depthscope.training.data.corpus import Corpus, by_frequency, check_number, ranks
from depthscope.training.data.task import SPLITS

BYTES = 256  # the symbols that merging starts from: with them every text can be written


def bpe_corpus(texts: Mapping[str, str], *, vocabulary: int, source: str) -> Corpus:
    """A text for each split -> ids of its pieces; which pieces there are is learned on train alone.

    vocabulary: the most there may be, fewer where the text has no more pairs that occur twice. The most frequent in
    train comes first. A piece never goes beyond the end of a line.
    """
    check_number(f"{source}: vocabulary", vocabulary, BYTES)
    tokenizer = learned(texts["train"], vocabulary)
    raw = {split: _ids(tokenizer, texts[split]) for split in SPLITS}
    order = by_frequency(raw["train"], tokenizer.get_vocab_size())
    rank = ranks(order)
    train, valid, test = (torch.from_numpy(rank[raw[split]]) for split in SPLITS)
    characters = {split: len(texts[split]) for split in SPLITS}
    decode = partial(decode_bpe, tokenizer, order)
    return Corpus(train, valid, test, len(order), "token", characters, source, decode)


def decode_bpe(tokenizer: Any, order: np.ndarray, ids: Tensor) -> str:
    """The text of ids (M,); a character that they hold only in part becomes U+FFFD."""
    return tokenizer.decode(order[ids.numpy()].tolist())


def learned(text: str, vocabulary: int) -> Any:
    """A tokenizers.Tokenizer that writes any text, with pieces that suit this one. The same text gives the same."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtraError(f"BPE: needs tokenizers; {error}. {install('hf')}") from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_lines(text), trainer)
    return tokenizer


def _ids(tokenizer: Any, text: str) -> np.ndarray:
    """Encoded line by line, a thousand at a time: of a long text at once, tokenizers needs a hundred bytes a token."""
    ids, rest = array("i"), _lines(text)
    while some := list(islice(rest, 1000)):
        for line in tokenizer.encode_batch(some):
            ids.extend(line.ids)
    return np.asarray(ids)


def _lines(text: str) -> Iterator[str]:
    r"""The lines with the \n at their end; splitlines would also cut at a dozen characters that end no line."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end
