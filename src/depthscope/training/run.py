"""The record of one training run: how it was set up, how it went, how it ended; saved as JSON and read back."""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from depthscope.errors import RecordError
from depthscope.files import whole_file
from depthscope.training.build import Build
from depthscope.training.recipe import Recipe, differences

FORMAT = "depthscope.run"
VERSION = 2  # 1 did not say leaks
HISTORY = ("step", "loss", "rate", "grad_norm")
NOT_FINITE = ("nan", "inf", "-inf")  # words in JSON


@dataclass
class Run:
    """What was trained and what came of it; it grows while the training goes on.

    history: one entry a step (loss: mean over the step's images; grad_norm: before clipping). evaluations: {epoch,
    step, split, loss, ...}; the splits are train (a part of it), valid, and test once, at the end. logs: {step,
    t_sim, t_div (depth + 1 values), gradient_norm (depth values)} of the weights with which the step began. final:
    {"train": {"loss", "accuracy" or whatever the task measures}, "valid": ..., "test": ...}. notes: what went wrong on
    the way and was survived. leaks: whether a remedy was told to show a causal model its future.
    """

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
    leaks: bool = False

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to do: a stopped run goes on where it was left, these do not."""
        return self.status in ("done", "diverged")

    def settings(self) -> dict[str, Any]:
        """All that decides what the run computes, flat."""
        return {"task": self.task, "fingerprint": self.fingerprint, **self.build.to_dict(), **self.recipe.to_dict()}

    def differences(self, other: "Run") -> list[str]:
        """The settings of another run that are not those of this one."""
        return differences(self.settings(), other.settings())

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: numbers that are not finite are words."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        record |= {"build": self.build.to_dict(), "recipe": self.recipe.to_dict()}
        return {"format": FORMAT, "version": VERSION, **worded(record)}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Run":
        if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("version") != VERSION:
            got = f"{record.get('format')!r} {record.get('version')!r}" if isinstance(record, dict) else type(record)
            raise RecordError(
                f"Run: a record must say format {FORMAT!r} and version {VERSION}; got {got}. "
                "Save it with run.save(), or use the depthscope that wrote it."
            )
        missing = [f.name for f in fields(cls) if f.name not in record]
        if missing:
            raise RecordError(f"Run: a record must have all its fields; missing: {', '.join(missing)}.")
        values = {f.name: record[f.name] for f in fields(cls)}
        for name in ("history", "evaluations", "logs", "final"):
            values[name] = _numbers(values[name])
        try:
            values |= {"build": Build(**values["build"]), "recipe": Recipe(**values["recipe"])}
        except TypeError as error:
            raise RecordError(f"Run: build and recipe must be those of this depthscope; {error}.") from None
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON: the whole file or none."""
        with whole_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False))

    @classmethod
    def load(cls, path: str | Path) -> "Run":
        try:
            return cls.from_dict(json.loads(Path(path).read_text()))
        except FileNotFoundError:
            raise RecordError(f"Run.load: the file must exist; {str(path)!r} does not. Check the path.") from None
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise RecordError(f"Run.load: {str(path)!r} must be JSON written by run.save(); {error}.") from None

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


def worded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: worded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [worded(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return float(value) if value in NOT_FINITE else value
