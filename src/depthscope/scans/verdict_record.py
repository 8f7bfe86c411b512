"""The Verdict on a scan: a word, the block, what drives it, and what to do."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from depthscope.records import plain, shown_in_words

Status = Literal["diverse", "escalating", "collapsed", "at the numerical floor", "vanished", "not a number"]


@dataclass(frozen=True)
class Verdict:
    """status, the block where it happens, what drives it with its share, and what to do."""

    status: Status
    block: int | None
    step: str | None
    t_div: float  # of all tokens, mean over sequences
    pace: float  # diversity shrinks by this factor per block, over the last quarter before `block` or the end
    driver: str
    shares: dict[str, float]  # of the growth of similarity: attention, ffn, norms, embeddings, biases
    fix_needed: bool
    text: str
    advice: str
    diversity: float = math.nan  # t_div without what hides it: massive tokens, outliers, shared channels
    rank: float = math.nan  # directions in which ordinary tokens differ, median over sequences
    sequences_collapsed: int = 0
    massive: tuple[int, ...] = ()  # positions that are massive in some block

    def __str__(self) -> str:
        return f"{self.status}: {self.text} {self.advice}"

    def gist(self) -> str:
        """collapsed from block 11 on, t_div 7.1e-07"""
        since = "" if self.block is None else f" from block {self.block} on"
        return f"{self.status}{since}, t_div {self.t_div:.2g}"

    def __repr__(self) -> str:
        return f"Verdict({self.gist()}{'; a fix is needed' if self.fix_needed else ''})"

    def _repr_html_(self) -> str | None:
        return shown_in_words("Verdict", self.status, [self.text, self.advice])

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return plain(self)
