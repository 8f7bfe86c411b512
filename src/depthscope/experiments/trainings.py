"""Settings that experiments with trainings have in common: seeds, where runs are kept, sizes of the model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from depthscope.experiments.races import Race
from depthscope.records import since

Choices = dict[str, Any]


@dataclass(frozen=True)
class Trainings:
    """trials: seeds, from seed on. folder: where runs are kept, and go on; "" keeps none.

    side_by_side: every run is a process of its own.
    """

    LEAST = {"trials": 1}
    trials: int = 3
    folder: str = since(2, default="")  # depth_race, placement and learning_rate had none
    side_by_side: bool = True
    seed: int = 0

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.trials)

    def race(
        self, arms: Iterable[str], model: Choices, recipe: Choices, task: str = "digits", /, **options: Any
    ) -> Race:
        """These arms with these seeds; options are those of the task."""
        return Race(tuple(arms), self.seeds, model, recipe, task, options, self.side_by_side, self.folder)


@dataclass(frozen=True)
class Sizes(Trainings):
    """A model of width d with h heads and feed-forward width q."""

    d: int = 32
    h: int = 4
    q: int = 64
    batch: int = 64

    def model(self, depth: int) -> dict[str, int]:
        return {"depth": depth, "d": self.d, "h": self.h, "q": self.q}


@dataclass(frozen=True)
class TextSizes(Sizes):
    """Of a model of the characters of pydoc. rates: the grid. test: how many characters of its split are looked at."""

    rates: tuple[float, ...] = (1e-3, 3e-3)
    d: int = 64
    q: int = 128
    segment: int = 64
    batch: int = 16
    steps: int = 256
    test: int = 16_384

    def text_race(self, arms: Iterable[str], depth: int, recipe: Choices, **options: Any) -> Race:
        """One epoch, a cosine from the rate to 0; what `recipe` and `options` say comes on top."""
        recipe = {"epochs": 1, "batch": self.batch, "schedule": "cosine"} | recipe
        options |= {"segment": self.segment, "test": self.test, "epoch_tokens": self.steps * self.batch * self.segment}
        return self.race(arms, self.model(depth), recipe, "pydoc", **options)
