"""Ablations: what a model's tokens come to when parts of its blocks are taken out, in all combinations."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from depthscope.errors import UnknownNameError
from depthscope.records import Record
from depthscope.scans.record import Scan
from depthscope.scans.verdict import floor_of

COLLAPSED = 1e-3  # a relative residual below this: all tokens are one token; in half precision the floor is higher
PURE = ({"skips", "ffn"}, {"attention_skip", "ffn"})  # without one of these sets a block is attention alone


@dataclass(frozen=True)
class Row:
    """One combination: the parts that were taken out, and a scan of the model without them."""

    removed: tuple[str, ...]
    scan: Scan

    @property
    def label(self) -> str:
        return f"without {', '.join(self.removed)}" if self.removed else "whole model"

    @property
    def floor(self) -> float:
        """The relative residual below which only rounding noise is left, 3e-7 in float32."""
        return math.sqrt(floor_of(self.scan.dtype))

    @property
    def limit(self) -> float:
        """The relative residual below which tokens count as one: 1e-3, or the floor where that is higher."""
        return max(COLLAPSED, self.floor)

    @property
    def until(self) -> int:
        """The last block after which the tokens are numbers to go by: finite, and not lost below the smallest."""
        smallest = torch.finfo(getattr(torch, self.scan.dtype)).tiny * math.sqrt(self.scan.width)
        norms, residuals = self.scan["token_norm"], self.scan["relative_residual"]
        good = norms.isfinite() & residuals.isfinite() & (norms > smallest)
        lost = (~good).nonzero()
        return self.scan.depth if len(lost) == 0 else int(lost[0]) - 1

    @property
    def residual(self) -> float:
        """The relative residual after the last block; NaN when the tokens vanished or overflowed before."""
        return float(self.scan["relative_residual"][-1]) if self.until == self.scan.depth else math.nan

    @property
    def collapse(self) -> int | None:
        """The block from which on the relative residual stays below the limit, as long as the tokens are numbers."""
        values = self.scan["relative_residual"][: self.until + 1].tolist()
        above = [block for block, value in enumerate(values) if not value < self.limit]
        first = above[-1] + 1 if above else 0
        return first if first < len(values) else None

    @property
    def ending(self) -> str:
        """What is wrong with the last numbers; empty when nothing is."""
        if self.until < self.scan.depth:
            values = self.scan["token_norm"][self.until + 1]
            what = "tokens vanish" if bool(values.isfinite()) and float(values) < 1 else "not a number"
            return f"{what} from block {self.until + 1} on"
        return "numerical floor" if self.residual < self.floor else ""

    def derived(self) -> dict[str, Any]:
        return {"relative_residual": self.residual, "collapse": self.collapse, "ending": self.ending}


@dataclass(frozen=True)
class Ablations(Record):
    """The rows of all combinations of parts, the whole model first; ablations["skips", "ffn"] is one of them.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> found = ds.ablate(model, X)
        >>> len(found.rows), found["skips", "ffn"].removed
        (8, ('skips', 'ffn'))
    """

    FORMAT = "depthscope.ablations"

    parts: tuple[str, ...]
    rows: tuple[Row, ...]

    def __getitem__(self, removed: str | Iterable[str]) -> Row:
        wanted = {removed} if isinstance(removed, str) else {*removed}
        for row in self.rows:
            if {*row.removed} == wanted:
                return row
        raise UnknownNameError(
            f"Ablations: no row without {', '.join(sorted(wanted))}; the parts were {', '.join(self.parts)}. "
            "Name some of them, or () for the whole model."
        )

    @property
    def verdict(self) -> str:
        """Does attention alone lose the tokens, does the whole model keep them, and which part does it?"""
        whole, bare = self[()], self[self.parts]
        pure = any(kind <= {*self.parts} for kind in PURE)
        who = f"{'Pure attention' if pure else 'The model'} ({', '.join(self.parts)} taken out)"
        said = f"{who}: {_left(bare)}. The whole model: {_left(whole)}."
        if len(self.parts) < 2:
            return said
        part = min(self.parts, key=lambda name: _rank(self[name]))
        if _rank(self[part]) >= _rank(whole):
            return said + " Without any single part the tokens are no closer together."
        kept = self[[name for name in self.parts if name != part]]
        found = f"Without it alone: {_left(self[part])}; with it alone: {_left(kept)}."
        return f"{said} What matters most: {part}. {found}"

    def gist(self) -> str:
        return f"{self[()].scan.title} without {', '.join(self.parts)}: {self.verdict}"

    def derived(self) -> dict[str, Any]:
        return {"verdict": self.verdict}


def _rank(row: Row) -> tuple[float, float]:
    """Rows that collapse first come first, then those whose tokens are closest in the end."""
    first = math.inf if row.collapse is None else row.collapse
    return first, math.inf if row.collapse is not None or math.isnan(row.residual) else row.residual


def _left(row: Row) -> str:
    """What becomes of the tokens, in words."""
    if row.collapse is not None:
        return f"collapse, all tokens are alike from block {row.collapse} on (relative residual below {row.limit:.2g})"
    if math.isnan(row.residual):
        return row.ending
    alike = f", t_sim {float(row.scan['t_sim'][-1]):.5f}" if float(row.scan["t_div"][-1]) < 0.01 else ""
    return f"relative residual {row.residual:.2g}{alike} at block {row.scan.depth}, no collapse"
