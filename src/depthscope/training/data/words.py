"""Words as ids, as for WikiText: split at white space, one more symbol at the end of each line."""

from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from depthscope.training.data.corpus import Corpus, by_frequency, ranks
from depthscope.training.data.task import SPLITS

END = "\n"  # what the field writes as <eos>: no word can be it, whatever the text holds
UNKNOWN = "<unk>"


def word_corpus(lines: Mapping[str, Iterable[str]], *, source: str) -> Corpus:
    """The lines of each split -> ids of words and of ends of lines.

    The vocabulary is that of train, the most frequent first (as an adaptive softmax needs it), ties by first
    appearance; a word of valid or test that is not in train is <unk>, which is there in any case. characters counts
    the text with one space between words and one newline for each line.
    """
    table = _Numbers()
    raw, characters = {}, {}
    raw["train"], characters["train"] = _ids(lines["train"], table.__getitem__)
    unknown = table[UNKNOWN]
    for split in ("valid", "test"):
        raw[split], characters[split] = _ids(lines[split], lambda word: table.get(word, unknown))
    order = by_frequency(raw["train"], len(table))
    rank = ranks(order)
    train, valid, test = (torch.from_numpy(rank[raw[split]]) for split in SPLITS)
    decode = partial(decode_words, np.array(list(table), object)[order])
    return Corpus(train, valid, test, len(table), "word", characters, source, decode)


def decode_words(vocabulary: np.ndarray, ids: Tensor) -> str:
    """The text of ids (M,): words with one space between them, a newline at each end of a line."""
    text = " ".join(vocabulary[ids.numpy()])
    return text.replace(" " + END, END).replace(END + " ", END)


class _Numbers(dict[str, int]):
    """Numbers its keys in the order in which they are first asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


def _ids(lines: Iterable[str], number: Callable[[str], int]) -> tuple[np.ndarray, int]:
    """(ids (N,) int32, characters): four bytes a word, and never more than a line of words as objects."""
    ids, characters = array("i"), 0
    for line in lines:
        words = line.split()
        characters += len(" ".join(words)) + 1
        words.append(END)
        ids.extend(map(number, words))
    return np.asarray(ids), characters
