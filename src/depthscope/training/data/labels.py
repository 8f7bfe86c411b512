"""One answer for each token: sequences with a label at every place, in three splits (Dong et al. 2021, section 4)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.errors import ShapeError, UsageError
from depthscope.models.tagger import tagger
from depthscope.training.data.classes import ClassTask, Examples
from depthscope.training.data.task import SPLITS
from depthscope.training.evaluate import Look, evaluate
from depthscope.training.label_batches import LabelBatches
from depthscope.training.recipe import Recipe

PROBE = 16  # sequences of the probe


@dataclass(frozen=True, eq=False)
class Labelled(Examples):
    """tokens: ids (N, n), int64, or points (N, n, channels), float32; labels (N, n), int64."""

    tokens: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class LabelTask(ClassTask[Labelled]):
    """Which of some classes each token belongs to, judged by all tokens of its sequence.

    words: how many there are where tokens are ids, None where they are points. places: whether the model knows where in
    its sequence a token stands. activation: of the feed-forward networks, "none" where there are none.
    """

    words: int | None
    places: bool
    activation: str

    def __post_init__(self) -> None:
        for split in SPLITS:
            check_labelled(f"{self.name}, {split} split", getattr(self, split), self.classes, self.words)

    @cached_property
    def fingerprint(self) -> str:
        return self.digest(str((self.classes, self.words, self.places, self.activation))).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, Any]:
        sequences = {split: len(getattr(self, split)) for split in SPLITS}
        return {
            "data": f"{sequences['train']:,} sequences of {self.length} tokens to learn from, "
            f"{sequences['test']:,} to test" + (f", {self.met:,} of which it has met" if self.met else ""),
            "model": "tagger",
            "count": self.test.labels.numel(),
            "asked": "tokens",
            "chance": self.chance,
            "classes": self.classes,
            "sequences": sequences,
            "ffn": self.activation != "none",
        }

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.train.labels.shape[1]

    @cached_property
    def met(self) -> int:
        """Sequences of the test split that are in the training split too."""
        known = {row.tobytes() for row in self.train.tokens.numpy()}
        return sum(row.tobytes() in known for row in self.test.tokens.numpy())

    @property
    def chance(self) -> float:
        """The accuracy of the best answer that is always the same; where places are known, the best for each place."""
        labels = self.test.labels if self.places else self.test.labels.view(-1, 1)
        votes = F.one_hot(labels, self.classes).sum(0)  # (places, classes)
        return float(votes.amax(-1).sum()) / labels.numel()

    def model(self, build: Any) -> nn.Module:
        if build.pooling != "cls":
            raise UsageError(
                f"{self.name}: every token has its own answer and nothing is pooled; got pooling={build.pooling!r}. "
                "Leave it out."
            )
        if self.activation == "none" and build.q != 2 * build.d:
            raise UsageError(
                f"{self.name}: its blocks have no feed-forward networks, which could be so wide; got q={build.q}. "
                "Leave --ffn out, or add --set activation=relu."
            )
        channels = self.train.tokens.shape[-1] if self.words is None else None
        sizes: dict[str, Any] = {"classes": self.classes, "vocabulary": self.words, "channels": channels}
        places = self.length if self.places else None
        return tagger(**sizes, tokens=places, **build.choices | {"activation": self.activation})

    def probe(self, device: torch.device) -> Tensor:
        """The first sequences of the training split."""
        return self.train.tokens[:PROBE].to(device)

    def batches(self, recipe: Recipe, device: torch.device) -> LabelBatches:
        return LabelBatches(self, recipe, device)

    def evaluate(self, model: nn.Module, split: str, **look: Unpack[Look]) -> dict[str, float]:
        shown = self.looked_at(split)
        return evaluate(model, shown.tokens, shown.labels, lambda tokens: tokens, **look)


def check_labelled(where: str, split: Labelled, classes: int, words: int | None) -> None:
    """Raise unless there are ids below `words`, or points, and a label in 0 ... classes - 1 for each token."""
    tokens, labels = split.tokens, split.labels
    kind, wanted = (torch.int64, "(N, n) int64") if words is not None else (torch.float32, "(N, n, channels) float32")
    if tokens.dtype != kind or tokens.ndim != (3 if words is None else 2) or tokens.numel() == 0:
        raise ShapeError(f"{where}: tokens must be {wanted}, not empty; got {tuple(tokens.shape)} {tokens.dtype}.")
    if labels.dtype != torch.int64 or labels.shape != tokens.shape[:2]:
        raise ShapeError(
            f"{where}: there must be one int64 label for each token, {tuple(tokens.shape[:2])}; got "
            f"{tuple(labels.shape)} {labels.dtype}."
        )
    for what, ids, limit in (("labels", labels, classes), *([("tokens", tokens, words)] if words is not None else [])):
        outside = (ids < 0) | (ids >= limit)
        if bool(outside.any()):
            row, place = outside.nonzero()[0].tolist()
            raise UsageError(
                f"{where}: {what} must lie in 0 ... {limit - 1}; got {int(ids[row, place])} in sequence {row} at "
                f"{place}."
            )
    if words is None and not bool(tokens.isfinite().all()):
        raise UsageError(f"{where}: points must be finite; some are not.")
