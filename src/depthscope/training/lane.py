"""One arm of a comparison: its runs over seeds, their means and spreads, their curves."""

import math
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from depthscope.training.arms import Arm
from depthscope.training.honest import leaks
from depthscope.training.run import HISTORY, Run

POINTS = 400  # of a curve of losses that are kept


@dataclass(frozen=True, eq=False)
class Lane:
    """One arm: the rate it was trained with, and by seed its runs, or why there is none.

    Means and spreads are over the runs that were done; diverged and failed ones are counted beside them.
    """

    arm: Arm
    lr: float
    runs: dict[int, Run]
    failed: dict[int, str]
    trials: list[dict[str, Any]] = field(default_factory=list)

    @property
    def done(self) -> dict[int, Run]:
        return {seed: run for seed, run in self.runs.items() if run.status == "done"}

    @property
    def diverged(self) -> dict[int, str]:
        """Seed and reason."""
        return {seed: run.reason for seed, run in self.runs.items() if run.status != "done"}

    def values(self, split: str, what: str) -> dict[int, float]:
        """ "loss", "accuracy" or another number of a split at the end, by seed."""
        return {seed: run.final[split][what] for seed, run in self.done.items()}

    def mean(self, split: str, what: str) -> float:
        return fmean(values) if (values := [*self.values(split, what).values()]) else math.nan

    def spread(self, split: str, what: str) -> float:
        """Sample deviation over seeds; nan below two."""
        values = [*self.values(split, what).values()]
        return stdev(values) if len(values) > 1 else math.nan

    @property
    def leaks(self) -> bool:
        """Whether a run of a language model saw the tokens that it was to predict."""
        gaps = ((run, run.final["test"].get("gap", 0.0)) for run in self.done.values())
        return any(run.leaks or leaks(gap, run.recipe.precision) for run, gap in gaps)

    @property
    def seconds(self) -> float:
        """Of a whole training, so over the runs that were done: one that diverged ended early."""
        return fmean(run.seconds for run in self.done.values()) if self.done else math.nan

    def curve(self, what: str) -> tuple[list[int], list[float], list[float], list[float]]:
        """(steps, means, lowest, highest) over seeds: "batch_loss", else a number of the validation split."""
        points: dict[int, list[float]] = {}
        for run in self.runs.values():
            for step, value in _points(run, what):
                points.setdefault(step, []).append(value)
        steps = sorted(points)
        means, lowest, highest = ([of(points[step]) for step in steps] for of in (fmean, min, max))
        return steps, means, lowest, highest

    def similarity(self) -> tuple[list[int], list[list[float]]]:
        """(steps, t_sim of the states 0 ... depth at each of them), mean over seeds."""
        logged: dict[int, list[list[float]]] = {}
        for run in self.runs.values():
            for log in run.logs:
                logged.setdefault(log["step"], []).append(log["t_sim"])
        steps = sorted(logged)
        return steps, [[fmean(block) for block in zip(*logged[step], strict=True)] for step in steps]

    def summary(self) -> dict[str, Any]:
        """The line of the table, as numbers."""
        measured = {
            (split, what) for run in self.done.values() for split in ("test", "train") for what in run.final[split]
        }
        return {
            "arm": self.arm.name,
            "lr": self.lr,
            **{
                f"{split}_{what}": {"mean": self.mean(split, what), "spread": self.spread(split, what)}
                for split, what in sorted(measured)
            },
            "leaks": self.leaks,
            "seconds": self.seconds,
            "done": len(self.done),
            "diverged": len(self.diverged),
            "failed": len(self.failed),
        }

    def derived(self) -> dict[str, Any]:
        return {"summary": self.summary()}


def thinned(run: Run, total: int) -> Run:
    """The run with at most POINTS steps in its history, each the mean over a stretch of steps; the step is its last.

    total: the steps that were planned. They decide the stretches, so that a run that diverged early has those of the
    others; its last one may be a part of a stretch.
    """
    width = math.ceil(total / POINTS)
    if width <= 1:
        return run
    starts = range(0, len(run.history["step"]), width)
    history = {name: [fmean(run.history[name][i : i + width]) for i in starts] for name in HISTORY[1:]}
    return replace(run, history={"step": [min(i + width, total) - 1 for i in starts], **history})


def _points(run: Run, what: str) -> list[tuple[int, float]]:
    if what == "batch_loss":
        points = zip(run.history["step"], run.history["loss"], strict=True)
    else:
        points = ((one["step"], one[what]) for one in run.evaluations if one["split"] == "valid")  # type: ignore[assignment]
    return [(step, value) for step, value in points if math.isfinite(value)]
