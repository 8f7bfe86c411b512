"""How a model is trained: a record of numbers, and the pure functions that follow from them."""

import math
from dataclasses import dataclass
from typing import Any

from depthscope.errors import UnknownNameError, UsageError
from depthscope.records import plain
from depthscope.registry import unknown
from depthscope.training.augment import NAMES

PRECISIONS = ("no", "bf16")
SCHEDULES = ("multi_step", "cosine")
SEEDS = 2**63  # there are fewer than this: torch takes no more
WHOLE = {"epochs": 1, "batch": 1, "warmup": 0, "accumulate": 1, "eval_every": 1, "log_every": 0, "seed": 0}  # least


@dataclass(frozen=True)
class Recipe:
    """AdamW with a schedule; the defaults are those of the small digits set-up (TRAINING.md, section 6).

    batch is the number of images, or rows of text, for one step over all processes and all accumulated parts. schedule
    is "multi_step": the rate is multiplied by gamma after each of the milestones, shares of all steps; or "cosine": it
    falls to 0 along half a wave (Dai et al. 2019), and milestones and gamma have no say. warmup counts steps,
    eval_every epochs, log_every steps between measurements of the monitor (0: at start and end only). clip bounds
    the norm of the gradient.
    """

    epochs: int = 6
    batch: int = 64
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "multi_step"
    milestones: tuple[float, ...] = (0.7, 0.9)
    gamma: float = 0.2
    warmup: int = 0
    clip: float | None = None
    precision: str = "no"
    accumulate: int = 1
    eval_every: int = 1
    log_every: int = 0
    augment: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("betas", "milestones"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(map(is_number, value)):
                raise UsageError(f"recipe: {name} must be a list of numbers; got {value!r}. Write [0.5, 0.9].")
            object.__setattr__(self, name, tuple(value))  # lists, as JSON has them
        for name, least in WHOLE.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(f"recipe: {name} must be a whole number, {least} or more; got {value!r}.")
        if self.seed >= SEEDS:
            raise UsageError(f"recipe: seed must be below 2^63; got {self.seed}.")
        for name in ("lr", "gamma", *(["clip"] if self.clip is not None else [])):
            if not is_number(getattr(self, name)) or not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"recipe: {name} must be positive and finite; got {getattr(self, name)!r}.")
        if not is_number(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"recipe: weight_decay must be 0 or more and finite; got {self.weight_decay!r}.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"recipe: betas must be two numbers in [0, 1); got {self.betas!r}.")
        if not all(0 < share <= 1 for share in self.milestones):
            raise UsageError(
                f"recipe: milestones must be shares of all steps, in (0, 1]; got {self.milestones!r}. "
                "0.7 multiplies the rate by gamma after 70 % of the steps."
            )
        if self.schedule not in SCHEDULES:
            raise UnknownNameError("recipe: " + unknown("schedule", self.schedule, SCHEDULES))
        if self.precision not in PRECISIONS:
            raise UnknownNameError("recipe: " + unknown("precision", self.precision, PRECISIONS))
        if self.augment not in NAMES:
            raise UnknownNameError("recipe: " + unknown("augmentation", self.augment, NAMES))

    def epoch_steps(self, count: int) -> int:
        """Steps of one epoch over `count` examples; the last may have fewer than the others."""
        return math.ceil(count / self.batch)

    def steps(self, count: int) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps(count)

    def rate(self, step: int, total: int) -> float:
        """What the learning rate is multiplied by at a step (the first is 0) of `total`: no state, so none to store."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.schedule == "cosine":
            return warm * (1 + math.cos(math.pi * step / total)) / 2
        return warm * self.gamma ** sum(step >= share * total for share in self.milestones)

    def to_dict(self) -> dict[str, Any]:
        """Plain data: tuples are lists, as JSON gives them back."""
        return plain(self)

    def differences(self, other: "Recipe") -> list[str]:
        """Where another recipe is not this one, in words: "lr: 0.001 became 0.0003"."""
        return differences(self.to_dict(), other.to_dict())


def is_number(value: Any) -> bool:
    """Whether a value, perhaps typed by somebody, is a number and not words, nothing, or true."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The settings that are not the same, one sentence each."""
    absent = "(none)"
    return [
        f"{name}: {was.get(name, absent)!r} became {now.get(name, absent)!r}"
        for name in dict.fromkeys([*was, *now])
        if was.get(name, absent) != now.get(name, absent)
    ]
