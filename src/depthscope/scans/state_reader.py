"""Numbers of states, taken the moment they are seen; small ones are copied and measured together."""

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from depthscope.checks import measurable
from depthscope.metrics.chunks import CHUNK, Energies, chunks
from depthscope.metrics.massive import rest
from depthscope.registry import MetricFacts
from depthscope.scans.exceptions import Seen, massive_in


@dataclass(eq=False)
class StateNumbers:
    """Per sample: the two energies, and the state metrics at the ends of blocks; the gradient when it is followed.

    Plain floats: small tensors that live on between large ones that do not would scatter the heap, block by block.
    Empty until its state is measured.
    """

    masked: bool
    common: list[float] = field(default_factory=list)
    centred: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)  # that count
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


class Waiting(NamedTuple):
    """A state (samples, n, d) that is to be measured, its mask (samples, n) or None, and where its numbers go."""

    tokens: Tensor
    mask: Tensor | None
    numbers: StateNumbers


class StateReader:
    """Measures tokens (..., n, d): energies in passing, all asked-for state metrics at the end of a block.

    A call of a torch function costs as much as reading some ten thousand numbers. So small states wait as copies, for a
    chunk of them together or for finish().
    """

    def __init__(self, metrics: list[Any], mask: Tensor | None) -> None:
        self.metrics, self.mask = metrics, mask
        self._waiting: defaultdict[Any, list[Waiting]] = defaultdict(list)

    def __call__(self, tokens: Tensor, numbers: StateNumbers | None, whole: bool) -> StateNumbers:
        if numbers is not None and (numbers.whole or not whole):
            return numbers
        tokens = measurable(tokens)
        fits = self.mask is not None and self.mask.shape == tokens.shape[:-1]
        mask = self.mask.to(tokens.device).reshape(-1, tokens.shape[-2]) if fits else None  # type: ignore[union-attr]
        # a state seen before, in passing, stays the same record: the hook for its gradient belongs to it
        numbers = StateNumbers(fits) if numbers is None else numbers
        numbers.whole = whole
        flat = tokens.detach().reshape(-1, *tokens.shape[-2:])
        if flat.numel() > CHUNK // 2:
            self._measure([Waiting(flat, mask, numbers)], whole)
            return numbers
        key = (whole, flat.shape, flat.dtype, flat.device, fits)
        self._waiting[key].append(Waiting(flat.clone(), mask, numbers))  # the model may write into it
        if len(self._waiting[key]) * flat.numel() > CHUNK // 2:
            self._measure(self._waiting.pop(key), whole)
        return numbers

    def finish(self) -> None:
        """Measure what is left: the pass has ended."""
        while self._waiting:
            key, states = self._waiting.popitem()
            self._measure(states, whole=key[0])

    def _measure(self, states: list[Waiting], whole: bool) -> None:
        """Fill the numbers of states of one shape."""
        states = [state for state in states if state.numbers.whole == whole]  # others were met again, as ends of blocks
        if not states:
            return
        tokens, mask, _ = states[0]
        if len(states) > 1:
            tokens = torch.cat([state.tokens for state in states])
            mask = mask if mask is None else torch.cat([state.mask for state in states])  # type: ignore[misc]
        wanted: list[MetricFacts] = [f.facts for f in self.metrics] if whole else []
        columns: defaultdict[str, list[Tensor]] = defaultdict(list)
        massive: list[Seen] = []
        directions: list[Tensor] = []
        done = 0
        for chunk in chunks(tokens, mask, where="scan"):
            columns["common"].append(chunk.energies.common)
            columns["centred"].append(chunk.energies.centred)
            columns["tokens"].append(chunk.n)
            for facts in wanted:
                columns[facts.name].append(facts.formula(chunk))  # type: ignore[misc]
            if whole:
                massive += massive_in(chunk, done)
                directions.append(normalize(chunk.once(rest).mean.squeeze(-2), dim=-1))
            done += len(chunk.x)
        rows = dict(zip(columns, torch.stack([torch.cat(column) for column in columns.values()]).tolist(), strict=True))
        start = 0
        for state in states:
            own, start = slice(start, start + len(state.tokens)), start + len(state.tokens)
            numbers = state.numbers
            numbers.common, numbers.centred, numbers.tokens = (rows[n][own] for n in ("common", "centred", "tokens"))
            numbers.values = {facts.name: rows[facts.name][own] for facts in wanted}
            numbers.massive = [(s - own.start, *seen) for s, *seen in massive if own.start <= s < own.stop]  # type: ignore[misc]
            numbers.directions = torch.cat(directions)[own].sum(0).tolist() if whole else []


def float64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
