"""Characters as ids: the vocabulary is every character of the text, in the order of Unicode."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from depthscope.training.data.corpus import Corpus
from depthscope.training.data.task import SPLITS


def character_corpus(texts: Mapping[str, str], *, source: str) -> Corpus:
    """A text for each split -> ids of its characters.

    The vocabulary is that of all splits together: a character that is only in valid costs what the model gives to
    one it never met, and no text is left out.
    """
    points = {split: code_points(texts[split]) for split in SPLITS}
    present = np.zeros(0x110000, bool)
    for some in points.values():
        present[some] = True
    number = np.cumsum(present) - 1  # of each code point among those present
    train, valid, test = (torch.from_numpy(number[points[split]]) for split in SPLITS)
    symbols = present.nonzero()[0].astype("<u4")
    characters = {split: len(texts[split]) for split in SPLITS}
    decode = partial(decode_characters, symbols)
    return Corpus(train, valid, test, len(symbols), "character", characters, source, decode)


def decode_characters(symbols: np.ndarray, ids: Tensor) -> str:
    """The text of ids (M,): the character with number symbols[i] for id i."""
    return symbols[ids.numpy()].tobytes().decode("utf-32-le")


def code_points(text: str) -> np.ndarray:
    """The number of each character in Unicode, (len(text),) uint32."""
    return np.frombuffer(text.encode("utf-32-le"), np.dtype("<u4"))


def in_shares(text: str, valid: float = 0.05, test: float = 0.05) -> dict[str, str]:
    """A text in three contiguous parts: train first, then valid, then test with these shares of its characters."""
    first, second = round(len(text) * (1 - valid - test)), round(len(text) * (1 - test))
    return {"train": text[:first], "valid": text[first:second], "test": text[second:]}
