"""The record of a comparison: every arm with every seed, what came of it, and which differences are more than noise."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from depthscope.records import Record
from depthscope.training.build import Build
from depthscope.training.lane import Lane
from depthscope.training.recipe import Recipe
from depthscope.training.scores import SCORES, Score
from depthscope.training.significance import Paired, holm, paired, verdict


@dataclass(frozen=True)
class Difference:
    """Two arms, the better one first; p is corrected for the number of comparisons that were made."""

    better: str
    worse: str
    test: Paired
    p: float

    @property
    def verdict(self) -> str:
        return verdict(self.p)

    def derived(self) -> dict[str, Any]:
        return {"verdict": self.verdict}


@dataclass(frozen=True, eq=False)
class Comparison(Record):
    """All arms of a comparison on one task.

    Attributes:
        facts: What is known of the data. score is the number of the test split by which arms are ranked, count is over
            how many it is a mean, and chance is what a guess gets.
        base: The model that all arms share.
        recipe: The training that all arms share.
        steps: The steps of one run.
        rates: How learning rates were chosen, in words; "" when all were given.
        reused: How many runs were already in the folder, from an earlier comparison.
    """

    FORMAT = "depthscope.comparison"
    VERSION, OLDEST = 3, 2  # 1 had other facts, 2 fewer choices of a build

    task: str
    facts: dict[str, Any]
    base: Build
    recipe: Recipe
    steps: int
    seeds: list[int]
    lanes: list[Lane]
    rates: str = ""
    reused: int = 0

    def __getitem__(self, arm: str) -> Lane:
        found = [lane for lane in self.lanes if lane.arm.name == arm]
        if not found:
            raise KeyError(f"comparison: no arm is called {arm!r}; there are {[lane.arm.name for lane in self.lanes]}.")
        return found[0]

    @property
    def score(self) -> Score:
        return SCORES[self.facts["score"]]

    @property
    def ranked(self) -> list[Lane]:
        """The arms whose scores are those of a predictor: one that was shown the answers is not ranked."""
        return [lane for lane in self.lanes if not lane.leaks]

    def differences(self, what: str | None = None) -> list[Difference]:
        """Every two ranked arms on the test split, paired over the seeds that both have done; what: another score."""
        found, score = [], self.score if what is None else SCORES[what]
        what, resolution = score.name, score.resolution(self.facts["count"])
        for one, other in combinations(self.ranked, 2):
            a, b = one.values("test", what), other.values("test", what)
            both = [seed for seed in self.seeds if seed in a and seed in b]
            test = paired([a[seed] for seed in both], [b[seed] for seed in both], resolution)
            if score.sign * test.mean < 0:
                one, other, test = other, one, replace(test, mean=-test.mean)
            found.append((one.arm.name, other.arm.name, test))
        corrected = holm([test.p for *_, test in found])
        return [Difference(*pair, p) for pair, p in zip(found, corrected, strict=True)]

    def gist(self) -> str:
        name = self.score.name
        arms = ", ".join(f"{lane.arm.name} {self.score.words(lane.mean('test', name))}" for lane in self.lanes)
        return f"{self.task}, {len(self.seeds)} seed{'' if len(self.seeds) == 1 else 's'}, test {name}: {arms}"

    def derived(self) -> dict[str, Any]:
        return {"differences": self.differences()}
