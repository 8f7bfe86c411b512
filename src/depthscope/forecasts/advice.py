"""Advice: the mildest change that keeps tokens apart down to the last block without making gradients explode."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from depthscope.errors import UsageError
from depthscope.forecasts.record import Forecast
from depthscope.records import Record

FLOOR = 0.05  # of the signal must differ between tokens at the last block
MARGIN = 0.05  # more than the floor is asked of a forecast without a band: what one model of a design may miss it by
MOST_GROWTH = 30.0  # of gradients over all blocks; at 200 training failed, at 10 it did not (docs/findings.md)


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

    def derived(self) -> dict[str, Any]:
        return {**self.settings, "gradients": self.growth, "t_div": self.forecast.t_div}


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
    """options: what was weighed, the model as it is first, then from mild to strong. chosen: the index of the best."""

    FORMAT = "depthscope.advice"

    options: list[Option]
    chosen: int
    floor: float
    most_growth: float

    @property
    def choice(self) -> Option:
        return self.options[self.chosen]

    @property
    def needed(self) -> bool:
        """Whether anything must change."""
        return self.chosen != 0

    @property
    def holds(self) -> bool:
        """Whether the choice keeps tokens apart, without making gradients explode."""
        return self.keeps(self.choice)

    def keeps(self, option: Option) -> bool:
        """Whether an option keeps tokens apart, without making gradients explode."""
        return _holds(option, self.floor, self.most_growth)

    @property
    def text(self) -> str:
        """Two sentences: what is wrong, and what to do."""
        now, new = self.options[0], self.choice
        depth, lost = now.forecast.depth, now.forecast.collapse_depth()
        left = f"{now.t_div:.2g} of the signal differs between tokens at block {depth}{_gradients(now)}"
        if not self.needed and self.holds:
            return f"No fix needed: {left}. That is above the floor of {self.floor:g}."
        when = "" if math.isinf(lost) else f", lost (t_sim above 0.99) after {lost:.0f} blocks"
        if not self.holds:
            best = f"the most is kept by {new.change}, {new.t_div:.2g}{_gradients(new)}"
            return f"As it is, {left}{when}. No single change keeps {self.floor:g}: {best}."
        return (
            f"As it is, {left}{when}. The mildest change that helps: {new.change}, which keeps "
            f"{new.t_div:.2g}{_gradients(new)}: {new.code}"
        )

    def gist(self) -> str:
        return self.text

    def derived(self) -> dict[str, Any]:
        return {"text": self.text, "needed": self.needed, "choice": self.chosen}

    def __str__(self) -> str:
        return self.text


def choose(now: Option, kinds: Sequence[Kind], *, floor: float = FLOOR, most_growth: float = MOST_GROWTH) -> Advice:
    """The mildest option that holds; when none does, the one that keeps most without exploding."""
    if not isinstance(floor, int | float) or not 0 < floor < 1 - MARGIN:
        raise UsageError(f"advise: floor must lie in (0, {1 - MARGIN:g}); got {floor}. 0.05 is the default.")
    if not isinstance(most_growth, int | float) or not most_growth > 0:
        raise UsageError(f"advise: most_growth must be positive; got {most_growth!r}. 30 is the default.")
    if _holds(now, floor, most_growth):
        return Advice([now], 0, floor, most_growth)
    options, good = [now], []
    for kind in sorted(kinds, key=lambda one: one.rank):
        if kind.calms and all(_is_calm(o, most_growth) for o in options):
            continue
        strength, option = _mildest(kind, floor, most_growth)
        options.append(option)
        if _holds(option, floor, most_growth):
            good.append((kind.rank, strength, len(options) - 1))
    if good:
        return Advice(options, min(good)[2], floor, most_growth)
    calm = [k for k, option in enumerate(options) if _is_calm(option, most_growth)] or range(len(options))
    return Advice(options, max(calm, key=lambda k: options[k].t_div), floor, most_growth)


def _mildest(kind: Kind, floor: float, most_growth: float) -> tuple[int, Option]:
    """The first strength that keeps diversity (or calms gradients), by bisection; the strongest if none does."""
    low, high = 0, len(kind.strengths) - 1
    options: dict[int, Option] = {}
    while low < high:
        middle = (low + high) // 2
        options[middle] = kind.option(kind.strengths[middle])
        enough = _keeps(options[middle], floor) if kind.keeps else _is_calm(options[middle], most_growth)
        low, high = (low, middle) if enough else (middle + 1, high)
    return low, options.get(low) or kind.option(kind.strengths[low])


def _keeps(option: Option, floor: float) -> bool:
    """Where a band says what chance may do, its bad end must hold; else the forecast with a margin."""
    band = option.forecast.band
    return option.t_div >= floor + MARGIN if band is None else 1 - float(band[1, -1]) >= floor


def _is_calm(option: Option, most_growth: float) -> bool:
    return option.growth is None or option.growth <= most_growth


def _holds(option: Option, floor: float, most_growth: float) -> bool:
    return _keeps(option, floor) and _is_calm(option, most_growth)


def _gradients(option: Option) -> str:
    if option.growth is None:
        return " (gradients: not known)"
    return f" (gradients: {option.growth:.2g} times as large at block 1)"
