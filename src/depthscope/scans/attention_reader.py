"""Numbers of attentions: those of one shape are measured together, so that few calls serve many heads."""

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.checks import WITHOUT_FLOAT64, measurable
from depthscope.metrics.mixing import sampled_mu_of
from depthscope.metrics.pattern import HELD, Pattern, pattern_of
from depthscope.metrics.plain_mixing import plain_mixing
from depthscope.metrics.scratch import Scratch
from depthscope.metrics.spectrum import SMALL
from depthscope.registry import MetricFacts
from depthscope.scans.state_numbers import fetched
from depthscope.traces.attention import AttentionSeen, first_sees_last

TOGETHER = HELD // 8  # elements of P that wait


@dataclass(eq=False)
class AttentionNumbers:
    """Per sample and head (B, h): the attention metrics; the largest relative error of each that has one.

    Empty until its attention is measured. Errors and leak are those of the attentions that were measured with it.
    """

    causal: bool | None = None  # None: not told by this alone
    values: dict[str, list[list[float]]] = field(default_factory=dict)
    residuals: dict[str, float] = field(default_factory=dict)
    leak: float = 0.0
    sequences: int = 0
    sampled: int = 0  # random channels from which mu_2 is; 0 for all
    without_tokens: bool = False  # no omega, no mu

    @property
    def heads(self) -> int:
        return len(next(iter(self.values.values()))[0])


class Waiting(NamedTuple):
    """An attention whose P (B, h, n, m) waits to be measured, the tokens X (B, n, d) it reads, and its numbers."""

    P: Tensor
    X: Tensor | None
    mask: Tensor | None
    numbers: AttentionNumbers


class Found(NamedTuple):
    """What was measured of several attentions together, on their device."""

    numbers: list[AttentionNumbers]
    names: list[str]
    table: Tensor  # (names, sequences, h)
    residuals: dict[str, Tensor]
    causal: bool

    @property
    def tensors(self) -> list[Tensor]:
        return [self.table, *self.residuals.values()]

    def fill(self, table: Tensor, *errors: Tensor) -> None:
        """Give every attention its own, from the tensors as they have come to the CPU."""
        rows, start = table.tolist(), 0
        residuals: dict[str, float] = {n: error.tolist() for n, error in zip(self.residuals, errors, strict=True)}  # type: ignore[misc]
        for one in self.numbers:
            own = slice(start, start := start + one.sequences)
            one.values = {name: row[own] for name, row in zip(self.names, rows, strict=True)}
            one.residuals, one.causal = residuals, self.causal or one.causal


class AttentionReader:
    """Measures attentions: P is made once for all metrics and soon forgotten.

    Small ones wait for others of their shape, or for finish(). Numbers on an accelerator stay there until then.
    """

    def __init__(self, metrics: list[Any], mask: Tensor | None, sample: int | None = None) -> None:
        self.metrics, self.mask, self.sample = metrics, mask, sample
        self.channels: dict[tuple[int, torch.device], Tensor] = {}
        self.scratch = Scratch()
        self._waiting: defaultdict[Any, list[Waiting]] = defaultdict(list)
        self._far: list[Found] = []  # on an accelerator

    def __call__(self, seen: AttentionSeen, X: Tensor | None) -> AttentionNumbers | None:
        if not self.metrics:
            return None
        seen, X = _on_a_measurable_device(seen), None if X is None else measurable(X)
        fits = self.mask is not None and tuple(self.mask.shape) == (seen.front[0], seen.queries)
        mask = self.mask.to(_device_of(seen)) if fits else None  # type: ignore[union-attr]
        if seen.kind == "mixing":
            return self._mixing(seen, X, mask)
        numbers = AttentionNumbers(False if first_sees_last(seen, mask) else None, sequences=seen.front[0])
        wanted = self._told_by(seen.kind)
        if not wanted:
            return numbers
        size = math.prod(seen.front) * seen.queries * seen.keys
        if size > TOGETHER:
            self._measure(self._pattern(seen, mask), seen.front, X, wanted, [numbers])
            return numbers
        P = self._pattern(seen, mask).held().reshape(*seen.front, seen.queries, seen.keys)
        looks_ahead = numbers.causal is False or seen.queries != seen.keys  # else P itself is asked
        triangular = bool(seen.causal) or not (looks_ahead or bool(P.triu(1).any()))
        token_shape = None if X is None else (X.shape, X.dtype)
        key = (seen.kind, P.shape, P.dtype, P.device, fits, seen.sink, triangular, token_shape)
        waiting = self._waiting[key]
        waiting.append(Waiting(P.clone(), X if X is None else X.detach().clone(), mask, numbers))
        if size * len(waiting) > TOGETHER:
            self._together(key, self._waiting.pop(key))
        return numbers

    def finish(self) -> None:
        """Measure what is left: the pass has ended."""
        while self._waiting:
            self._together(*self._waiting.popitem())
        near = iter(fetched([tensor for found in self._far for tensor in found.tensors]))
        for found in self._far:
            found.fill(*(next(near) for _ in found.tensors))
        self._far.clear()

    def _pattern(self, seen: AttentionSeen, mask: Tensor | None) -> Pattern:
        return pattern_of(
            seen.P,
            q=seen.q,
            k=seen.k,
            scale=seen.scale,
            bias=seen.bias,
            causal=seen.causal,
            mask=mask,
            where="scan",
            trusted=True,
            scratch=self.scratch,
            sink=seen.sink,
        )[0]

    def _together(self, key: Any, waiting: list[Waiting]) -> None:
        """Measure attentions of one shape as one."""
        kind, sink, triangular = key[0], key[5], key[6]
        P, X, mask = (
            None if parts[0] is None else torch.cat(parts)
            for parts in zip(*((one.P, one.X, one.mask) for one in waiting), strict=True)
        )
        pattern, batch = pattern_of(P, mask=mask, where="scan", trusted=True, scratch=self.scratch, sink=sink)
        pattern.causal = triangular or None  # where one looks ahead, others may not
        self._measure(pattern, batch, X, self._told_by(kind), [one.numbers for one in waiting])

    def _measure(
        self, pattern: Pattern, batch: Any, X: Tensor | None, wanted: list[Any], numbers: list[AttentionNumbers]
    ) -> None:
        """Fill the numbers of attentions that follow each other along the batch of a pattern."""
        columns: dict[str, list[Tensor]] = {}
        residuals: dict[str, Tensor] = {}
        triangular, leak = True, 0.0
        for part in pattern.pieces():
            for function in wanted:
                self._read(function.facts, part, X, columns, residuals)
            triangular = triangular and part.is_triangular()
            leak = max(leak, part.leak)
        names = list(columns)
        table = torch.stack([torch.cat(columns[name]) for name in names]).reshape(len(names), -1, batch[1])
        for one in numbers:
            one.leak = leak
            one.sampled = self.sample or 0 if "mu_2" in residuals else 0
            one.without_tokens = X is None and any("X" in f.facts.takes for f in wanted)
        found = Found(numbers, names, table, residuals, triangular)
        if table.device.type == "cpu":
            found.fill(*found.tensors)
        else:
            self._far.append(found)

    def _told_by(self, kind: str) -> list[Any]:
        """The metrics that a kind of attention has: keys that are other tokens leave the spread of the rows alone."""
        return [f for f in self.metrics if f.facts.name == "attention_entropy"] if kind == "cross" else self.metrics

    def _mixing(self, seen: AttentionSeen, X: Tensor | None, mask: Tensor | None) -> AttentionNumbers:
        """A matrix M (B, h, n, n) without probabilities: what it has, and NaN for what only probabilities have."""
        M = seen.P
        assert M is not None  # nothing else is mixing
        found = plain_mixing(M, X, mask)
        empty = torch.full(M.shape[:2], math.nan, dtype=torch.float64)
        values = {part: found.get(part, empty).tolist() for f in self.metrics for part in f.facts.parts}
        return AttentionNumbers(not bool(M.triu(1).any()) or None, values, sequences=len(M))

    def _read(self, facts: MetricFacts, part: Any, X: Tensor | None, columns: dict, residuals: dict) -> None:
        assert facts.formula is not None  # every attention metric has one
        if "X" not in facts.takes:
            found = facts.formula(part)
        elif X is None:
            empty = torch.full((part.size,), math.nan, dtype=torch.float64, device=part.device)
            found = (empty,) * len(facts.parts)
        elif facts.name == "mu" and (channels := self._channels(X)) is not None:
            found, error = sampled_mu_of(part, X, channels)
            _keep_largest(residuals, "mu_2", error, found[1])
        else:
            found = facts.formula(part, X)
        if facts.estimated:
            found, error = found
            _keep_largest(residuals, facts.name, error, found)
        parts = found if isinstance(found, tuple) else (found,)
        for name, value in zip(facts.parts, parts, strict=True):
            columns.setdefault(name, []).append(value.double())

    def _channels(self, X: Tensor) -> Tensor | None:
        """Random orthonormal channels (d, sample) of X, the same in every block; None where all are looked at."""
        d = X.shape[-1]
        if self.sample is None or self.sample >= d:
            return None
        if (d, X.device) not in self.channels:
            G = torch.randn(d, self.sample, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            self.channels[d, X.device] = torch.linalg.qr(G).Q.to(X.device)
        return self.channels[d, X.device]


def _device_of(seen: AttentionSeen) -> torch.device:
    return (seen.q if seen.q is not None else seen.P).device  # type: ignore[union-attr]


def _on_a_measurable_device(seen: AttentionSeen) -> AttentionSeen:
    if _device_of(seen).type not in WITHOUT_FLOAT64:
        return seen
    P, q, k, bias = (None if part is None else measurable(part) for part in (seen.P, seen.q, seen.k, seen.bias))
    return replace(seen, P=P, q=q, k=k, bias=bias)


def _keep_largest(residuals: dict[str, Tensor], name: str, error: Tensor, value: Tensor) -> None:
    """The largest relative error so far, against SMALL where the value itself is smaller."""
    relative = torch.where(value.isnan(), 0.0, error / value.clamp_min(SMALL)).nan_to_num(math.inf).max()
    known = residuals.get(name)
    residuals[name] = relative if known is None else torch.maximum(known, relative)
