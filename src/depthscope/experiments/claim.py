"""A claim: what a paper says, as a number, the interval it must lie in, and what it would be if nothing were to it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.records import plain, since

Number = float | Tensor
Row = tuple[str, Number, float, float, Number]  # what is said, the value, low, high, null
Known = tuple[str, Number, float, float]  # of a claim that differs: that it can fail, it shows


@dataclass(frozen=True)
class Claim:
    """`says` in the paper's sense, `value` as measured over `trials`; the claim holds if low <= value <= high.

    null is the value without the effect: no effect at all, a guess, the bound of another case, the arm without the
    remedy. It lies outside the interval, or the claim could not fail. expected=False marks a claim that is known not to
    hold here; it does not make a run fail. A claim without an interval is a number that is reported and not counted.

    Examples:
        >>> claim = ds.experiments.Claim("attention doubles the odds", value=1.99, low=1.8, high=2.2, null=1.0)
        >>> claim.holds
        True
    """

    says: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    trials: int = 1
    expected: bool = True
    null: float = since(3, default=math.nan)

    @property
    def holds(self) -> bool:
        return self.low <= self.value <= self.high

    @property
    def counted(self) -> bool:
        """Whether a run fails when it does not hold."""
        return self.expected and not self.reported

    @property
    def reported(self) -> bool:
        """Whether it is only a number: there is no interval."""
        return math.isinf(self.low) and math.isinf(self.high)

    @property
    def can_fail(self) -> bool:
        """Whether what nothing would give is known, and would not do."""
        return not (math.isnan(self.null) or self.low <= self.null <= self.high)

    @property
    def wanted(self) -> str:
        """The interval in words."""
        if self.reported:
            return ""
        if self.low == self.high:
            return f"{self.low:g}"
        if math.isinf(self.low):
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"

    @property
    def status(self) -> str:
        """holds, fails, what a claim that was not expected to hold did, or reported."""
        if self.reported:
            return "reported"
        if self.expected:
            return "holds" if self.holds else "FAILS"
        return "holds (!)" if self.holds else "differs (known)"

    def derived(self) -> dict[str, Any]:
        return {"wanted": self.wanted, "holds": self.holds, "status": self.status}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return plain(self)

    @classmethod
    def of_words(cls, record: dict[str, Any]) -> "Claim":
        """A claim from plain data that has its interval in words alone, as it was once written."""
        sign, _, limit = record["wanted"].rpartition(" ")
        low = -math.inf if sign == "<=" else float(sign.removesuffix(" to") if sign.endswith(" to") else limit)
        high = math.inf if sign == ">=" else float(limit)
        return cls(record["says"], float(record["value"]), low, high, record["trials"], record["expected"])


def stated(trials: int, *rows: Row | Known, expected: bool = True) -> list[Claim]:
    """Claims from rows (what is said, the value, low, high, null), all over the same trials.

    Where expected is False a row may leave the null out.
    """
    made = []
    for says, value, low, high, *null in rows:
        made.append(Claim(says, float(value), low, high, trials, expected, float(null[0]) if null else math.nan))
    return made


def reported(trials: int, *rows: tuple[str, Number]) -> list[Claim]:
    """Numbers that are shown and not counted, from rows (what is said, the value)."""
    return [Claim(says, float(value), trials=trials) for says, value in rows]


def least(values: Tensor) -> float:
    """The least of them; NaN, in no interval, where there are none."""
    return float(values.min()) if values.numel() else math.nan


def of_another(values: Tensor) -> Tensor:
    """Each case with the value of the case before it: a bound or a forecast that is about something else."""
    return values.roll(1, -1)


def majority(yes: Tensor) -> Tensor:
    """How often it is right to give the more frequent answer always."""
    share = yes.double().mean()
    return torch.maximum(share, 1 - share)
