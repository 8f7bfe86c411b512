"""Advice: the mildest change that keeps tokens apart to the last block, bears the rate, and keeps gradients calm."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from depthscope.errors import UsageError
from depthscope.forecasts.record import Forecast
from depthscope.records import Record, since

FLOOR = 0.05  # of the signal must differ between tokens at the last block
MARGIN = 0.05  # more than the floor is asked of a forecast without a band: what one model of a design may miss it by
MOST_GROWTH = 30.0  # of gradients over all blocks; at 200 training failed, at 10 it did not (docs/findings.md)
LIKELY = 0.99  # probability of training at the rate that is asked for: below it forecasts are right too seldom


@dataclass(frozen=True, eq=False)
class Option:
    """A change in words, as settings, as a line of code, and what it would do.

    settings: tau and site of de-escalation, scores, alpha, wiring, branches (a factor on both), those that change.
    """

    change: str
    settings: dict[str, Any]
    code: str
    forecast: Forecast

    @property
    def t_div(self) -> float:
        """What is left at the last block."""
        return float(self.forecast.t_div[-1])

    @property
    def growth(self) -> float | None:
        """By how much gradients grow over all blocks; None where that is not known."""
        per_block = self.forecast.gradient_growth
        return None if per_block is None else math.exp(min(float(per_block.log().sum()), 700.0))

    def trains(self, lr: float | None) -> float:
        """How likely it is to train at a rate; 1 where none is asked for."""
        return 1.0 if lr is None else self.forecast.trains(lr).probability

    def derived(self) -> dict[str, Any]:
        rate = {} if self.forecast.rate_limit is None else {"largest_rate": self.forecast.largest_rate}
        return {**self.settings, "gradients": self.growth, "t_div": self.forecast.t_div, **rate}


class Limits(NamedTuple):
    """What a change must keep to: t_div at the last block, growth of gradients, and the rate that it is to train at."""

    floor: float = FLOOR
    most_growth: float = MOST_GROWTH
    lr: float | None = None

    def keeps_apart(self, option: Option) -> bool:
        """Where a band says what chance may do, its bad end must hold; else the forecast with a margin."""
        band = option.forecast.band
        return option.t_div >= self.floor + MARGIN if band is None else 1 - float(band[1, -1]) >= self.floor

    def is_calm(self, option: Option) -> bool:
        return option.growth is None or option.growth <= self.most_growth

    def trains(self, option: Option) -> bool:
        return option.trains(self.lr) >= LIKELY

    def hold(self, option: Option) -> bool:
        return self.keeps_apart(option) and self.is_calm(option) and self.trains(option)


@dataclass(frozen=True)
class Kind:
    """One way to change a model: its option at each of the strengths, from mild to strong.

    rank: the order of mildness between kinds. calms: it is there for gradients, and of no use unless they explode.
    keeps: strength is sought that keeps tokens apart; otherwise one that calms gradients.
    """

    rank: int
    option: Callable[[Any], Option]
    strengths: Sequence[Any]
    calms: bool = False
    keeps: bool = True


@dataclass(frozen=True, eq=False)
class Advice(Record):
    """The changes that were tried, and the one that is best.

    Attributes:
        options: The model as it is, then the changes from mild to strong.
        chosen: The index of the best option.
        lr: The learning rate that was asked for, if any.

    Examples:
        >>> advice = ds.advise(depth=24, n=64, d=64, h=4)
        >>> advice.holds, len(advice.options) > 1
        (True, True)
    """

    FORMAT, VERSION = "depthscope.advice", 2  # 1 knew of no rate

    options: list[Option]
    chosen: int
    floor: float
    most_growth: float
    lr: float | None = since(2, default=None)

    @property
    def choice(self) -> Option:
        return self.options[self.chosen]

    @property
    def needed(self) -> bool:
        """Whether anything must change."""
        return self.chosen != 0

    @property
    def holds(self) -> bool:
        """Whether the choice keeps tokens apart, without making gradients explode, and trains at the rate."""
        return self.keeps(self.choice)

    def keeps(self, option: Option) -> bool:
        """Whether an option keeps tokens apart, without making gradients explode, and trains at the rate."""
        return Limits(self.floor, self.most_growth, self.lr).hold(option)

    @property
    def text(self) -> str:
        """Two sentences: what is wrong, and what to do."""
        now, new = self.options[0], self.choice
        depth, lost = now.forecast.depth, now.forecast.collapse_depth()
        left = f"{now.t_div:.2g} of the signal differs between tokens at block {depth}{_gradients(now)}"
        rate = "" if self.lr is None else f"; it trains at {self.lr:.2g} with probability {now.trains(self.lr):.2f}"
        if not self.needed and self.holds:
            return f"No fix needed: {left}{rate}. That is above the floor of {self.floor:g}."
        when = "" if math.isinf(lost) else f", lost (t_sim above 0.99) after {lost:.0f} blocks"
        and_rate = "" if self.lr is None else f" and trains at {self.lr:.2g}"
        then = "" if self.lr is None else f", probability of training {new.trains(self.lr):.2f}"
        if not self.holds:
            best = f"the most is kept by {new.change}, {new.t_div:.2g}{_gradients(new)}{then}"
            return f"As it is, {left}{when}{rate}. No single change keeps {self.floor:g}{and_rate}: {best}."
        return (
            f"As it is, {left}{when}{rate}. The mildest change that helps: {new.change}, which keeps "
            f"{new.t_div:.2g}{_gradients(new)}{then}: {new.code}"
        )

    def gist(self) -> str:
        return self.text

    def derived(self) -> dict[str, Any]:
        return {"text": self.text, "needed": self.needed, "choice": self.chosen}

    def __str__(self) -> str:
        return self.text


def choose(now: Option, kinds: Sequence[Kind], limits: Limits | None = None) -> Advice:
    """The mildest option that holds; when none does, the one that keeps most without exploding, or bears most."""
    limits = limits or Limits()
    floor, most_growth, lr = limits
    if not isinstance(floor, int | float) or not 0 < floor < 1 - MARGIN:
        raise UsageError(f"advise: floor must lie in (0, {1 - MARGIN:g}); got {floor}. 0.05 is the default.")
    if not isinstance(most_growth, int | float) or not most_growth > 0:
        raise UsageError(f"advise: most_growth must be positive; got {most_growth!r}. 30 is the default.")
    if limits.hold(now):
        return Advice([now], 0, floor, most_growth, lr)
    options, good = [now], []
    for kind in sorted(kinds, key=lambda one: one.rank):
        if kind.calms and all(limits.is_calm(o) for o in options):
            continue
        strength, option = _mildest(kind, limits)
        options.append(option)
        if limits.hold(option):
            good.append((kind.rank, strength, len(options) - 1))
    if good:
        return Advice(options, min(good)[2], floor, most_growth, lr)
    calm = [k for k, option in enumerate(options) if limits.is_calm(option)] or range(len(options))
    best = max(calm, key=lambda k: (options[k].trains(lr), options[k].t_div))
    return Advice(options, best, floor, most_growth, lr)


def _mildest(kind: Kind, limits: Limits) -> tuple[int, Option]:
    """The first strength that keeps diversity and the rate (or calms gradients), by bisection; else the strongest."""
    low, high = 0, len(kind.strengths) - 1
    options: dict[int, Option] = {}
    while low < high:
        middle = (low + high) // 2
        one = options[middle] = kind.option(kind.strengths[middle])
        enough = limits.keeps_apart(one) and limits.trains(one) if kind.keeps else limits.is_calm(one)
        low, high = (low, middle) if enough else (middle + 1, high)
    return low, options.get(low) or kind.option(kind.strengths[low])


def _gradients(option: Option) -> str:
    if option.growth is None:
        return " (gradients: not known)"
    return f" (gradients: {option.growth:.2g} times as large at block 1)"
