"""The numbers of one state as plain floats, and how they leave the device on which they were measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.checks import measurable
from depthscope.metrics.chunk import Energies
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
        self.gradient = float(torch.linalg.vector_norm(measurable(gradient), dtype=torch.float64))

    @property
    def finite(self) -> bool:
        return all(math.isfinite(v) for v in (*self.common, *self.centred))


class Measured(NamedTuple):
    """What was measured of several states of one shape together, with `samples` sequences each; on their device."""

    numbers: list[StateNumbers]
    samples: int
    names: list[str]
    rows: Tensor  # (names, sequences)
    directions: Tensor | None  # (states, d), at the ends of blocks
    times: Tensor | None  # (sequences, n): norm over the median norm of massive tokens, 0 of others; there too
    valid: Tensor | None  # (sequences, n), where there is padding

    @property
    def tensors(self) -> list[Tensor]:
        return [part for part in self[3:] if part is not None]

    def near(self, parts: Iterator[Tensor]) -> "Measured":
        """The same with these in the place of its tensors."""
        return Measured(*self[:3], *(None if part is None else next(parts) for part in self[3:]))  # type: ignore[arg-type]

    def fill(self) -> None:
        """Give every state its own."""
        rows = dict(zip(self.names, self.rows.tolist(), strict=True))
        massive = [] if self.times is None else massive_in(self.times, self.valid)
        directions = [[]] * len(self.numbers) if self.directions is None else self.directions.tolist()
        for i, numbers in enumerate(self.numbers):
            if numbers.whole != (self.times is not None):
                continue  # met again as the end of a block, and measured there
            start, stop = i * self.samples, (i + 1) * self.samples
            own = {name: row[start:stop] for name, row in rows.items()}
            numbers.common, numbers.centred, numbers.tokens = (own.pop(n) for n in ("common", "centred", "tokens"))
            numbers.values, numbers.directions = own, directions[i]
            numbers.massive = [(s - start, *seen) for s, *seen in massive if start <= s < stop]  # type: ignore[misc]


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same on the CPU in float64, fetched from each device in one go: an accelerator is waited for once."""
    near: dict[int, Tensor] = {}
    for device in dict.fromkeys(tensor.device for tensor in tensors):
        here = [(i, tensor) for i, tensor in enumerate(tensors) if tensor.device == device]
        flat = torch.cat([tensor.flatten().double() for _, tensor in here]).cpu()
        parts = flat.split([tensor.numel() for _, tensor in here])
        near |= {i: part.view(tensor.shape) for (i, tensor), part in zip(here, parts, strict=True)}
    return [near[i] for i in range(len(tensors))]


def float64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
