"""A state metric on some positions only: t_sim[0:16], t_div[-16:], t_sim[1/4] (the first of four equal parts).

Positions count tokens and not padding: in a sequence that is padded on the left, position 0 is its first token.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.metrics.chunk import Chunk
from depthscope.registry import MetricFacts, lookup
from depthscope.scans.state_numbers import StateNumbers


@dataclass(frozen=True)
class Slice:
    """start:stop with Python's meaning."""

    start: int | None
    stop: int | None

    def of(self, n: int) -> range:
        return range(*slice(self.start, self.stop).indices(n))


@dataclass(frozen=True)
class Part:
    """The k-th of `parts` ranges of equal length, k from 1; for each sequence by its own length."""

    k: int
    parts: int

    def of(self, n: int) -> range:
        return range((self.k - 1) * n // self.parts, self.k * n // self.parts)


@dataclass(frozen=True)
class MetricAt:
    """A state metric on a range of positions; to a scan it is a metric like any other."""

    name: str
    metric: Any
    positions: Slice | Part

    @cached_property
    def facts(self) -> MetricFacts:
        return replace(self.metric.facts, name=self.name, parts=(self.name,), formula=self._formula)

    def _formula(self, chunk: Chunk) -> Tensor:
        """The metric of the range, (b,); NaN where it holds fewer than two tokens."""
        spans = [self.positions.of(int(n)) for n in chunk.n.tolist()]
        nothing = torch.full_like(chunk.n, torch.nan)
        if max(map(len, spans)) < 2:
            return nothing
        if chunk.valid is None:
            inside = Chunk(chunk.x[:, spans[0].start : spans[0].stop], None, chunk.scale, chunk.room)
            return self.metric.facts.formula(inside)
        ends = torch.tensor([[s.start, s.stop] for s in spans], device=chunk.x.device)[:, :, None, None]
        position = chunk.valid.int().cumsum(-2) - 1
        keep = chunk.valid & (ends[:, 0] <= position) & (position < ends[:, 1])
        inside = chunk.part(keep)
        return torch.where(inside.n >= 2, self.metric.facts.formula(inside), nothing)


def metric_called(name: str) -> Any:
    """The metric of this name, on all positions or on those in its brackets."""
    base, bracket, inside = str(name).partition("[")
    if not bracket:
        return lookup("metric", name)
    metric = lookup("metric", base.strip())
    if metric.facts.kind != "state":
        raise UsageError(
            f"positions go with a metric of one state, such as t_sim[0:16]; got {name!r}, and {base} is one of "
            f"{'a step' if metric.facts.kind == 'step' else 'attention'}. Ask for {base} without positions."
        )
    inside = re.sub(r"\s", "", inside)
    if base.strip() == "first_token_similarity" and not re.match(r"0?:|1/", inside):
        raise UsageError(
            f"first_token_similarity is about the first token of a sequence, which its positions must hold; got "
            f"{name!r}. Write first_token_similarity[:16]."
        )
    return MetricAt(f"{base.strip()}[{inside}", metric, _positions(inside, name))


def _positions(text: str, name: str) -> Slice | Part:
    if found := re.fullmatch(r"(-?\d+)?:(-?\d+)?\]", text):
        start, stop = (None if end is None else int(end) for end in found.groups())
        return Slice(start, stop)
    if (found := re.fullmatch(r"(\d+)/(\d+)\]", text)) and 1 <= int(found[1]) <= int(found[2]):
        return Part(int(found[1]), int(found[2]))
    raise UsageError(
        f"positions must be start:stop, as in t_sim[0:16] or t_sim[-16:], or one of equal parts, as in "
        f"t_sim[1/4]; got {name!r}. Count positions from 0 and parts from 1."
    )


def check_positions(metrics: Iterable[Any], states: list[StateNumbers]) -> None:
    """Raise UsageError unless every range holds two tokens or more of every sequence, in every state of the blocks."""
    for metric in metrics:
        if not isinstance(metric, MetricAt):
            continue
        for tokens in (state.tokens for state in states):
            short = [(i, int(n)) for i, n in enumerate(tokens) if len(metric.positions.of(int(n))) < 2]
            if short:
                i, n = short[0]
                held = "one token" if metric.positions.of(n) else "no token"
                raise UsageError(
                    f"{metric.name} must hold two tokens or more of every sequence; it holds {held} of sequence "
                    f"{i}, which has {n} that are not padding. Choose positions inside the shortest sequence."
                )
