"""Ordinary tokens: without massive tokens, and without massive channels that all share. And who is central among them.

A central token is the one nearest to the median of all in SEEN channels, which are the first ones of few and fixed
random mixtures of many (d > MANY). That chooses a token; what is then said of it is measured in all channels.
"""

from functools import cache

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.massive import rest

SEEN = 8
MANY = 32
OFFSET = 100.0  # times the energy of a usual channel: a massive channel ...
SHARED = 0.25  # ... that all tokens share, if it varies by less than this part of its energy
CHANNELS = 16  # at most one channel in so many is an exception


def ordinary(chunk: Chunk) -> Chunk:
    """The tokens that are not massive, without massive channels that all of them share."""
    few = chunk.once(rest)
    n, d = few.n, few.x.shape[-1]
    squares = few.mean.square().squeeze(-2)  # (b, d)
    usual = squares.median(-1).values + few.scaled_energies.centred / (n * d)
    large = squares > OFFSET * usual[:, None]
    large &= (CHANNELS * large.sum(-1) <= max(d, CHANNELS))[:, None] & (d > 1)
    on_cpu = large.device.type == "cpu"  # an accelerator is not asked
    if on_cpu and not large.any():
        return few
    varies = few.Pi_2_x.square().sum(-2) / n[:, None]
    shared = large & (varies < SHARED * squares)
    if on_cpu and not shared.any():
        return few
    return Chunk(few.x.masked_fill(shared[:, None], 0.0), few.valid, few.scale, few.room)


def kept(few: Chunk) -> Tensor | None:
    """Which tokens of a chunk count, (b, n); None where all do."""
    return None if few.valid is None else few.valid.squeeze(-1)


def inverse_norms(few: Chunk) -> Tensor:
    """1 / |x_i|, (b, n); keeps a NaN, leaves a zero token at zero."""
    return torch.where(few.norms > 0, 1.0 / few.norms, few.norms)


def centred_seen(few: Chunk) -> Tensor:
    """Centred tokens in the channels that choose, (b, SEEN or fewer, n), float64."""
    z = few.Pi_2_x.mT
    R = _mixtures(few.x.shape[-1], few.x.device, few.x.dtype)
    return (z[:, :SEEN] if R is None else R @ z).double()  # z^T R^T would take three times as long


def directions_seen(few: Chunk) -> Tensor:
    """x_i / |x_i| in the channels that choose, (b, SEEN or fewer, n), float64."""
    R = _mixtures(few.x.shape[-1], few.x.device, torch.float64)
    mean = few.mean.mT[:, :SEEN] if R is None else R @ few.mean.mT
    return (few.once(centred_seen) + mean) * few.once(inverse_norms)[:, None]


def central(seen: Tensor, keep: Tensor | None) -> Tensor:
    """The token nearest to the median of those to keep, (b,): one of the majority, where there is one.

    seen (b, k, n): tokens in a few channels. keep (b, n), or None for all.
    """
    if keep is None:
        median = seen.kthvalue((seen.shape[-1] + 1) // 2, keepdim=True).values  # as the median, and faster
        return (seen - median.nan_to_num(0.0)).square().sum(-2).argmin(-1)
    median = torch.where(keep[:, None], seen, torch.nan).nanmedian(-1, keepdim=True).values.nan_to_num(0.0)
    return torch.where(keep, (seen - median).square().sum(-2), torch.inf).argmin(-1)


@cache
def _mixtures(d: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """R (SEEN, d), of normal numbers; None for few channels."""
    if d <= MANY:
        return None
    R = torch.randn(d, MANY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (R[:, :SEEN] / MANY**0.5).mT.contiguous().to(device, dtype)
