"""The record of a comparison: every arm with every seed, what came of it, and which differences are more than noise."""

import json
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from depthscope.errors import RecordError
from depthscope.files import whole_file
from depthscope.training.build import Build
from depthscope.training.lane import Lane
from depthscope.training.recipe import Recipe
from depthscope.training.run import worded
from depthscope.training.scores import SCORES, Score
from depthscope.training.significance import Paired, holm, paired, verdict

FORMAT = "depthscope.comparison"
VERSION = 2  # 1 had other facts


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


@dataclass(frozen=True, eq=False)
class Comparison:
    """All lanes of a comparison on one task. facts: of the data; base and recipe: what all arms share.

    Of the facts, score is the number of the test split by which arms are ranked, count what it is a mean over, chance
    what one gets without looking.
    steps: of one run. rates: how learning rates were chosen, in words; "" when all were given. reused: how many runs
    were in the folder already, done by an earlier comparison.
    """

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: numbers that are not finite are words."""
        return worded(
            {
                "format": FORMAT,
                "version": VERSION,
                "task": self.task,
                "facts": self.facts,
                "base": self.base.to_dict(),
                "recipe": self.recipe.to_dict(),
                "steps": self.steps,
                "seeds": self.seeds,
                "rates": self.rates,
                "reused": self.reused,
                "lanes": [lane.to_dict() for lane in self.lanes],
                "differences": [asdict(one) | {"verdict": one.verdict} for one in self.differences()],
            }
        )

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Comparison":
        if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
            got = f"{record.get('format')!r} {record.get('version')!r}" if isinstance(record, dict) else type(record)
            raise RecordError(
                f"Comparison: a record must say format {FORMAT!r} and version {VERSION}; got {got}. "
                "Save it with comparison.save(), or use the depthscope that wrote it."
            )
        try:
            plain = {name: record[name] for name in ("task", "facts", "steps", "seeds", "rates", "reused")}
            lanes = [Lane.from_dict(lane) for lane in record["lanes"]]
            return cls(base=Build(**record["base"]), recipe=Recipe(**record["recipe"]), lanes=lanes, **plain)
        except (KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"Comparison: a record must have all its fields; {error!r}. The file is damaged."
            ) from None

    def save(self, path: str | Path) -> None:
        """Write the record as JSON: the whole file or none."""
        with whole_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False))

    @classmethod
    def load(cls, path: str | Path) -> "Comparison":
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except FileNotFoundError:
            raise RecordError(
                f"Comparison.load: the file must exist; {str(path)!r} does not. Check the path."
            ) from None
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise RecordError(f"Comparison.load: {str(path)!r} must be JSON by comparison.save(); {error}.") from None

    def __str__(self) -> str:
        from depthscope.reports.comparisons import comparison_text

        return comparison_text(self)
