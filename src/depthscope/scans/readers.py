"""Numbers of one state and of one attention, taken the moment they are seen."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from depthscope.metrics.chunks import CHUNK, Energies, chunks
from depthscope.metrics.massive import rest
from depthscope.metrics.pattern import Scratch, pattern_of
from depthscope.metrics.plain_mixing import plain_mixing
from depthscope.registry import MetricFacts
from depthscope.scans.exceptions import Seen, massive_in
from depthscope.traces.attention import AttentionSeen, first_sees_last

# Budgets for each state or attention; the sequences beyond them are left out, and the scan notes it.
INSIDE = CHUNK  # elements of a state that costly metrics, and the steps inside a block, may read
ITERATED = 1 << 22  # elements of P that the iterated statistics may read
SMALL = 1e-3  # delta and lambda_2 below this are nothing: their error counts against it
SKETCH = 64  # channels that stand for all of a wide X when mu_2 is measured


@dataclass(eq=False)
class StateNumbers:
    """Per sample: the two energies, and the state metrics at the ends of blocks; the gradient when it is followed.

    Plain floats: small tensors that live on between large ones that do not would scatter the heap, block by block.
    """

    common: list[float]
    centred: list[float]
    tokens: list[float]  # that count
    masked: bool
    values: dict[str, list[float]] = field(default_factory=dict)
    massive: list[Seen] = field(default_factory=list)  # tokens, at the ends of blocks
    directions: list[float] = field(default_factory=list)  # of the mean tokens, summed over samples: (d,), there too
    whole: bool = False
    followed: bool = False
    gradient: float = math.nan

    @property
    def energies(self) -> Energies:
        return Energies(float64(self.common), float64(self.centred))

    @property
    def token_size(self) -> float:
        """Root mean square of the norms of all tokens that count."""
        return math.sqrt((sum(self.common) + sum(self.centred)) / sum(self.tokens))

    def take_gradient(self, gradient: Tensor) -> None:
        self.gradient = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))

    @property
    def finite(self) -> bool:
        return all(math.isfinite(v) for v in (*self.common, *self.centred))


class StateReader:
    """Measures tokens (..., n, d): energies in passing, all asked-for state metrics at the end of a block."""

    def __init__(self, metrics: list[Any], mask: Tensor | None) -> None:
        self.metrics, self.mask = metrics, mask

    def __call__(self, tokens: Tensor, numbers: StateNumbers | None, whole: bool) -> StateNumbers:
        mask = self.mask.to(tokens.device) if self.mask is not None and self.mask.shape == tokens.shape[:-1] else None
        if numbers is not None and (numbers.whole or not whole):
            return numbers
        few = max(1, INSIDE // (tokens.shape[-2] * tokens.shape[-1]))
        if not whole:
            tokens, mask = tokens[:few], mask if mask is None else mask[:few]
        pairs: list[Energies] = []
        counts: list[Tensor] = []
        wanted: list[MetricFacts] = [f.facts for f in self.metrics] if whole else []
        columns: dict[str, list[Tensor]] = {facts.name: [] for facts in wanted}
        massive: list[Seen] = []
        directions = tokens.new_zeros(tokens.shape[-1] if whole else 0, dtype=torch.float64)
        done = 0
        for chunk in chunks(tokens, mask, where="scan"):
            pairs.append(chunk.energies)
            counts.append(chunk.n)
            for facts in wanted:
                if done < few or not facts.costly:
                    columns[facts.name].append(facts.formula(chunk))  # type: ignore[misc]
            if whole:
                massive += massive_in(chunk, done)
                directions += normalize(chunk.once(rest).mean.squeeze(-2), dim=-1).sum(0)
            done += len(chunk.x)
        common, centred = (torch.cat(column).tolist() for column in zip(*pairs, strict=True))
        values = {name: torch.cat(column).tolist() for name, column in columns.items()}
        if numbers is None:
            numbers = StateNumbers(common, centred, torch.cat(counts).tolist(), mask is not None)
        # a state seen before, in passing, stays the same record: the hook for its gradient belongs to it
        numbers.common, numbers.centred, numbers.tokens = common, centred, torch.cat(counts).tolist()
        numbers.values, numbers.massive, numbers.whole = values, massive, whole
        numbers.directions = directions.tolist()
        return numbers


def float64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(eq=False)
class AttentionNumbers:
    """Per sample and head (B, h): the attention metrics; the largest relative error of each that has one."""

    values: dict[str, list[list[float]]]
    residuals: dict[str, float]
    causal: bool | None  # None: not told by this alone
    leak: float
    iterated: int  # sequences that the iterated statistics were measured on
    sequences: int
    sketched: bool  # mu_2 from a few random channels
    without_tokens: bool  # no omega, no mu


class AttentionReader:
    """Measures one attention, a few heads at a time, so that P is made once for all metrics and soon forgotten."""

    def __init__(self, metrics: list[Any], mask: Tensor | None) -> None:
        self.metrics, self.mask = metrics, mask
        self.sketches: dict[int, Tensor] = {}
        self.scratch = Scratch()

    def __call__(self, seen: AttentionSeen, X: Tensor | None) -> AttentionNumbers | None:
        if not self.metrics:
            return None
        fits = self.mask is not None and tuple(self.mask.shape) == (seen.front[0], seen.queries)
        if seen.kind == "mixing":
            return self._mixing(seen, X, self.mask if fits else None)
        pattern, batch = pattern_of(
            seen.P,
            q=seen.q,
            k=seen.k,
            scale=seen.scale,
            bias=seen.bias,
            causal=seen.causal,
            mask=self.mask if fits else None,
            where="scan",
            trusted=True,
            scratch=self.scratch,
            sink=seen.sink,
        )
        columns: dict[str, list[Tensor]] = {}
        residuals: dict[str, float] = {}
        triangular, leak = True, 0.0
        few = min(batch[0], max(1, ITERATED // (batch[1] * pattern.n * pattern.m)))
        for part in pattern.pieces():
            for function in self._told_by(seen):
                if part.first < few * batch[1] or not function.facts.estimated:
                    self._read(function.facts, part, X, columns, residuals)
            triangular = triangular and part.is_triangular()
            leak = max(leak, part.leak)
        values = {name: torch.cat(parts).reshape(-1, batch[1]).tolist() for name, parts in columns.items()}
        needs_tokens = seen.kind == "self" and any("X" in f.facts.takes for f in self.metrics)
        measured = len(values[name]) if (name := next(iter(residuals), None)) else batch[0]
        sketched = X is not None and "mu_2" in values and self._sketch(X) is not None
        lost = needs_tokens and X is None
        causal = triangular or (False if first_sees_last(seen, self.mask if fits else None) else None)
        return AttentionNumbers(values, residuals, causal, leak, measured, batch[0], sketched, lost)

    def _told_by(self, seen: AttentionSeen) -> list[Any]:
        """The metrics that a kind of attention has: keys that are other tokens leave the spread of the rows alone."""
        return (
            [f for f in self.metrics if f.facts.name == "attention_entropy"] if seen.kind == "cross" else self.metrics
        )

    def _mixing(self, seen: AttentionSeen, X: Tensor | None, mask: Tensor | None) -> AttentionNumbers:
        """A matrix M (B, h, n, n) without probabilities: what it has, and NaN for what only probabilities have."""
        M = seen.P
        assert M is not None  # nothing else is mixing
        few = max(1, ITERATED // (M.shape[1] * M.shape[-1] ** 2))
        M, X, mask = M[:few], X if X is None else X[:few], mask if mask is None else mask[:few]
        found = plain_mixing(M, X, mask)
        empty = torch.full(M.shape[:2], math.nan, dtype=torch.float64)
        values = {part: found.get(part, empty).tolist() for f in self.metrics for part in f.facts.parts}
        causal = not bool(M.triu(1).any()) or None
        return AttentionNumbers(values, {}, causal, 0.0, len(M), seen.front[0], False, False)

    def _read(self, facts: MetricFacts, part: Any, X: Tensor | None, columns: dict, residuals: dict) -> None:
        assert facts.formula is not None  # every attention metric has one
        if facts.estimated:
            found = facts.formula(part)
        elif "X" not in facts.takes:
            found = facts.formula(part)
        elif X is None:
            found = tuple(torch.full((part.size,), math.nan, dtype=torch.float64) for _ in facts.parts)
        elif facts.name == "mu":
            found = facts.formula(part, X, self._sketch(X))
        else:
            found = facts.formula(part, X)
        if facts.estimated:
            found, residual = found
            relative = residual / found.clamp_min(SMALL)
            residuals[facts.name] = max(residuals.get(facts.name, 0.0), float(relative.nan_to_num(0.0).max()))
        parts = found if isinstance(found, tuple) else (found,)
        for name, value in zip(facts.parts, parts, strict=True):
            columns.setdefault(name, []).append(value)

    def _sketch(self, X: Tensor) -> Tensor | None:
        """Random orthonormal channels (d, SKETCH) for a wide X, the same in every block; None when X is narrow."""
        d = X.shape[-1]
        if d <= 4 * SKETCH:
            return None
        if d not in self.sketches:
            G = torch.randn(d, SKETCH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            self.sketches[d] = torch.linalg.qr(G).Q.to(X.device)
        return self.sketches[d]
