"""The number of the test split by which arms are ranked, what its values mean, and how it is written."""

import math
from dataclasses import dataclass
from typing import Any

CHANCE = 3  # deviations of the accuracy of guesses, up to which an arm has learned nothing that can be told
NATS = 0.01  # the same for a loss: an arm this close to the frequencies of tokens has learned nothing else


@dataclass(frozen=True)
class Score:
    """sign: 1 where more is better, else -1. Values are written times `scale`, with `digits` and `unit`; differences
    in `steps`; the better of two arms lies `ahead` of the other."""

    name: str
    sign: int
    scale: float
    digits: int
    unit: str
    steps: str
    ahead: str

    def resolution(self, count: int) -> float:
        """The smallest step between two values that are means over `count` targets."""
        return 1 / count if self.name == "accuracy" else 0.0

    def nothing_learned(self, value: float, facts: dict[str, Any]) -> bool:
        """Whether someone who does not look at the inputs may come to this value."""
        chance = facts["chance"]
        if self.name == "accuracy":
            return value <= chance + CHANCE * math.sqrt(chance * (1 - chance) / facts["count"])
        return value >= chance - NATS

    def words(self, value: float, spread: float = math.nan) -> str:
        return in_range(self.scale * value, self.scale * spread, self.digits) + ("" if math.isnan(value) else self.unit)

    def difference(self, mean: float, spread: float) -> str:
        return f"{in_range(self.scale * mean, self.scale * spread, self.digits)} {self.steps}"


SCORES = {
    "accuracy": Score("accuracy", 1, 100.0, 1, " %", "points", "above"),
    "loss": Score("loss", -1, 1.0, 3, "", "nats", "below"),
    "own loss": Score("loss", -1, 1.0, 4, "", "of the loss", "below"),
}


def in_range(mean: float, spread: float, digits: int) -> str:
    """mean ± spread; no spread where there is none to tell."""
    if math.isnan(mean):
        return "-"
    return f"{mean:.{digits}f}" if math.isnan(spread) else f"{mean:.{digits}f} ± {spread:.{digits}f}"
