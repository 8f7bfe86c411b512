"""The record of one training run: how it was set up, how it went, how it ended; saved as JSON and read back."""

from dataclasses import dataclass, field
from typing import Any

from depthscope.records import Record, plain, since
from depthscope.training.build import Build
from depthscope.training.recipe import Recipe, differences

HISTORY = ("step", "loss", "rate", "grad_norm")


@dataclass
class Run(Record):
    """What was trained and what came of it; it grows while the training goes on.

    history: one entry a step (loss: mean over the step's images; grad_norm: before clipping). evaluations: {epoch,
    step, split, loss, ...}; the splits are train (a part of it), valid, and test once, at the end. logs: {step,
    t_sim, t_div (depth + 1 values), gradient_norm (depth values)} of the weights with which the step began. final:
    {"train": {"loss", "accuracy" or whatever the task measures}, "valid": ..., "test": ...}. notes: what went wrong on
    the way and was survived. leaks: whether a remedy was told to show a causal model its future.
    """

    FORMAT = "depthscope.run"
    VERSION = 3  # 2 did not say alpha, activation and scores of what was built

    build: Build
    recipe: Recipe
    task: str
    fingerprint: str
    status: str = "running"  # running, done, diverged, stopped
    reason: str = ""
    seconds: float = 0.0
    history: dict[str, list] = field(default_factory=lambda: {name: [] for name in HISTORY})
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    leaks: bool = since(2, default=False)

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do: a stopped run goes on where it was left, these do not."""
        return self.status in ("done", "diverged")

    def settings(self) -> dict[str, Any]:
        """All that decides what the run computes, flat."""
        return {"task": self.task, "fingerprint": self.fingerprint, **plain(self.build), **plain(self.recipe)}

    def differences(self, other: "Run") -> list[str]:
        """The settings of another run that are not those of this one."""
        return differences(self.settings(), other.settings())

    def gist(self) -> str:
        return f"{self.task}, {self.build.depth} blocks: {self}"

    def __str__(self) -> str:
        """One line: how it ended, and what was measured on each split."""
        results = (f"{split} {_in_words(one)}" for split, one in self.final.items())
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.status}{why} after {len(self.history['step'])} steps, {self.seconds:.1f} s" + "".join(
            f"; {result}" for result in results
        )


def _in_words(measured: dict[str, float]) -> str:
    """loss 0.241, accuracy 97.0%"""
    return ", ".join(
        f"{name.replace('_', ' ')} {value:.1%}"
        if name.startswith("accuracy")
        else f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in measured.items()
    )
