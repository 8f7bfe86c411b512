"""What a corpus is: three streams of ids, what the ids stand for, and how much text they were."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError
from depthscope.training.data.task import SPLITS

Unit = Literal["character", "word", "token"]
LEAST = 256  # ids of a split: of less, a loss says nothing


@dataclass(frozen=True, eq=False)
class Corpus:
    """train, valid, test: ids (N,), int64, in 0 ... vocabulary - 1, in the order of the text.

    characters: by split, how many characters of text its ids stand for, from which bits per character follow.
    source: where the text is from, for people. decode: ids (M,) -> their text; None where they stand for nothing.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int
    unit: Unit
    characters: dict[str, int]
    source: str = "corpus"
    decode: Callable[[Tensor], str] | None = None
    least: InitVar[int] = LEAST

    def __post_init__(self, least: int) -> None:
        if self.unit not in get_args(Unit):
            raise UsageError(f"{self.source}: unit must be {', '.join(get_args(Unit))}; got {self.unit!r}.")
        if set(self.characters) != set(SPLITS) or min(self.characters.values()) < 0:
            raise UsageError(
                f"{self.source}: characters must have a count, 0 or more, for each of {', '.join(SPLITS)}; "
                f"got {self.characters}."
            )
        for split in SPLITS:
            self._check(split, getattr(self, split), least)
        if self.vocabulary < 2:
            raise UsageError(
                f"{self.source}: must have 2 different {self.unit}s or more; got {self.vocabulary}. "
                "There is nothing to tell apart: give another text."
            )

    def _check(self, split: str, ids: Tensor, least: int) -> None:
        if ids.ndim != 1 or ids.dtype != torch.int64:
            raise ShapeError(
                f"{self.source}, {split} split: ids must be int64 (N,); got {ids.dtype} {tuple(ids.shape)}."
            )
        if len(ids) < least:
            counts = ", ".join(f"{len(getattr(self, part))} in {part}" for part in SPLITS)
            raise UsageError(
                f"{self.source}: each split must have at least {least} {self.unit}s; got {counts}. Give a longer text."
            )
        outside = (ids < 0) | (ids >= self.vocabulary)
        if bool(outside.any()):
            first = int(outside.nonzero()[0])
            raise UsageError(
                f"{self.source}, {split} split: ids must lie in 0 ... {self.vocabulary - 1}; got {int(ids[first])} "
                f"at {first}."
            )


def limit(corpus: Corpus, train: int | None, *, where: str) -> Corpus:
    """The corpus with only the first `train` ids to learn from, or all; vocabulary and other splits stay the same."""
    if train is None:
        return corpus
    check_number(f"{where}: train", train, LEAST, len(corpus.train))
    ids = corpus.train[:train].clone()  # a view would keep all the others in memory
    characters = len(ids) if corpus.decode is None else len(corpus.decode(ids))
    return replace(corpus, train=ids, characters=corpus.characters | {"train": characters})


def check_number(where: str, number: object, least: int, most: int | None = None) -> None:
    """Raise UsageError unless number is a whole number from least to most."""
    if type(number) is not int or number < least or (most is not None and number > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most}"
        raise UsageError(f"{where} must be a whole number, {bounds}; got {number!r}.")


def by_frequency(ids: np.ndarray, size: int) -> np.ndarray:
    """ids (N,) -> (size,): the ids 0 ... size - 1, the most frequent first, ties in the order of their numbers."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(ids), 2**22):  # in parts: bincount makes a copy of 8 bytes for each id
        counts += np.bincount(ids[start : start + 2**22], minlength=size)
    return np.argsort(-counts, kind="stable")


def ranks(order: np.ndarray) -> np.ndarray:
    """The inverse of a permutation: where in `order` each id stands, (size,) int64."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places
