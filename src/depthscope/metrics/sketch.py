"""Ordinary tokens in a few random channels: without massive tokens, and without massive channels that all share.

Distances are taken in SKETCH random channels, S = Z R with R (d, SKETCH), E |z R|^2 = |z|^2: O(n d) and no n x n
matrix. The seed is fixed, so a state has one value. For d <= SKETCH nothing is estimated: R is the identity.
"""

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.chunks import Chunk
from depthscope.metrics.massive import rest

SKETCH = 32
OFFSET = 100.0  # times the energy of a usual channel: a massive channel ...
SHARED = 0.25  # ... that all tokens share, if it varies by less than this part of its energy
CHANNELS = 16  # at most one channel in so many is an exception


class Sketch(NamedTuple):
    """Ordinary tokens in a few random channels, float64."""

    centred: Tensor  # z_i R, z_i = x_i - mean, (b, n, k); zero where keep is False
    directions: Tensor  # x_i R / |x_i|, (b, n, k)
    keep: Tensor  # (b, n)

    @property
    def n(self) -> Tensor:
        return self.keep.sum(-1)


def ordinary(chunk: Chunk) -> Chunk:
    """The tokens that are not massive, without massive channels that all of them share."""
    few = chunk.once(rest)
    n, d = few.n, few.x.shape[-1]
    squares = few.mean.square().squeeze(-2)  # (b, d)
    usual = squares.median(-1).values + few.scaled_energies.centred / (n * d)
    large = squares > OFFSET * usual[:, None]
    large &= (CHANNELS * large.sum(-1) <= max(d, CHANNELS))[:, None] & (d > 1)
    if not large.any():
        return few
    varies = few.Pi_2_x.square().sum(-2) / n[:, None]
    shared = large & (varies < SHARED * squares)
    return Chunk(torch.where(shared[:, None], 0.0, few.x), few.valid, few.scale) if shared.any() else few


def sketch(chunk: Chunk) -> Sketch:
    few = chunk.once(ordinary)
    R = _channels(few.x.shape[-1], few.x.device)
    seen, mean = (few.Pi_2_x, few.mean) if R is None else (few.Pi_2_x_in(R), few.mean @ R)
    keep = torch.ones_like(few.norms, dtype=torch.bool) if few.valid is None else few.valid.squeeze(-1)
    weight = torch.where(few.norms > 0, 1.0 / few.norms, few.norms)  # keeps a NaN, leaves a zero token at zero
    return Sketch(seen, (seen + mean) * weight[..., None], keep)


@cache
def _channels(d: int, device: torch.device) -> Tensor | None:
    if d <= SKETCH:
        return None
    R = torch.randn(d, SKETCH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (R / SKETCH**0.5).to(device)
