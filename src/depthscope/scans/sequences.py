"""What a scan keeps of single sequences, batch by batch: the verdict's curves, massive tokens, mean directions."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.scans.exceptions import Massive
from depthscope.scans.reading import Reading
from depthscope.scans.record import JUDGED
from depthscope.scans.running import merged
from depthscope.scans.state_numbers import float64

MOST = 1 << 14  # sequences whose curves are kept: memory does not grow with the batches

Place = tuple[int, int]  # the turn of a batch, and the process that ran it


@dataclass(frozen=True, eq=False)
class Sequences:
    """Curves by batch; directions of mean tokens summed; massive tokens counted.

    Where sequences are more than MOST, the curves of every 2nd, 4th, ... batch are kept; all else is of all batches.
    """

    curves: dict[Place, dict[str, Tensor]]  # -> quantity -> (depth + 1, sequences)
    directions: list[tuple[Tensor, int]]  # of each state: sum of the directions of mean tokens (d,), how many
    massive: dict[tuple[int, int], tuple[int, float]]  # (block, position) -> sequences, sum of sizes
    count: int
    every: int = 1

    def __add__(self, other: "Sequences") -> "Sequences":
        every = max(self.every, other.every)
        curves = {place: kept for place, kept in (self.curves | other.curves).items() if not place[0] % every}
        while _count(curves) > MOST and len({turn for turn, _ in curves}) > 1:
            every *= 2
            curves = {place: kept for place, kept in curves.items() if not place[0] % every}
        return Sequences(
            curves,
            [(a + b, m + n) for (a, m), (b, n) in zip(self.directions, other.directions, strict=True)],
            merged(self.massive, other.massive, lambda a, b: (a[0] + b[0], a[1] + b[1])),
            self.count + other.count,
            every,
        )

    def table(self) -> dict[str, Tensor]:
        """Quantity -> (depth + 1, sequences), in the order of the batches."""
        rows = [kept for _, kept in sorted(self.curves.items(), key=lambda pair: pair[0])]
        found = {name: torch.cat([row[name] for row in rows], dim=-1) for name in rows[0]}
        found["sequences_apart"] = self._apart()[:, None].expand_as(found["t_div"])
        return found

    def _apart(self) -> Tensor:
        """t_div of the directions m_s of the mean tokens of all sequences, 1 - |mean_s m_s|^2: (depth + 1,)."""
        means = [total / count for total, count in self.directions]
        return torch.stack([1 - mean.square().sum() for mean in means]).clamp_min(0.0)

    def massive_tokens(self) -> list[Massive]:
        return [Massive(*place, count, total / count) for place, (count, total) in sorted(self.massive.items())]

    def notes(self) -> list[str]:
        kept = _count(self.curves)
        if kept == self.count:
            return []
        return [
            f"the verdict rests on {kept} of {self.count} sequences (every {self.every}th batch), so that memory "
            "does not grow; all means are over all sequences"
        ]


def sequences_of(reading: Reading, place: Place) -> Sequences:
    """Those of one batch."""
    curves = {name: reading.judged(name) for name in JUDGED}
    counts = reading.by_sample([reading.blocks[0].source.numbers.tokens])
    curves["tokens"] = counts.expand_as(curves["t_div"])
    states = reading.judged_states()
    massive: dict[tuple[int, int], Any] = {}
    for block, state in enumerate(states):
        for _, position, size in state.massive:
            count, total = massive.get((block, position), (0, 0.0))
            massive[block, position] = (count + 1, total + size)
    directions = [(float64(state.directions), len(state.common)) for state in states]
    return Sequences({place: curves}, directions, massive, curves["t_div"].shape[-1])


def _count(curves: dict[Place, dict[str, Tensor]]) -> int:
    return sum(kept["t_div"].shape[-1] for kept in curves.values())
