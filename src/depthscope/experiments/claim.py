"""A claim: what a paper says, as a number and the interval that was chosen for it beforehand."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.records import plain


@dataclass(frozen=True)
class Claim:
    """`says` in the paper's sense, `value` as measured over `trials`; it holds when low <= value <= high.

    expected=False marks a claim that is known not to hold here: it is reported, and it fails no run.
    """

    says: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    trials: int = 1
    expected: bool = True

    @property
    def holds(self) -> bool:
        return self.low <= self.value <= self.high

    @property
    def wanted(self) -> str:
        """The interval in words."""
        if self.low == self.high:
            return f"{self.low:g}"
        if math.isinf(self.low):
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if math.isinf(self.high) else f"{self.low:g} to {self.high:g}"

    @property
    def status(self) -> str:
        """holds, fails, or what a claim that was not expected to hold did."""
        if self.expected:
            return "holds" if self.holds else "FAILS"
        return "holds (!)" if self.holds else "differs (known)"

    def derived(self) -> dict[str, Any]:
        return {"wanted": self.wanted, "holds": self.holds}

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


def stated(trials: int, *rows: tuple[str, float | Tensor, float, float], expected: bool = True) -> list[Claim]:
    """Claims from rows (what is said, the value, low, high), all over the same trials."""
    return [Claim(says, float(value), low, high, trials, expected) for says, value, low, high in rows]
