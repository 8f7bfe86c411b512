"""Sums over tokens and channels of float32 numbers: short sums in float32, sums of those in float64.

A float64 copy of a state costs as much as ten passes over it. A float32 sum of a few dozen numbers is off by about
1e-7 of them, now up and now down; over the thousands of short sums of a state that cancels to about 1e-8.
In float64 nothing here is rounded to float32.
"""

from functools import cache

import torch
from torch import Tensor

from depthscope.metrics.room import Room

LEAST = 1 << 12  # numbers in a sample: a float64 copy of fewer costs less than the calls that avoid it
SHORT = 64  # channels in one float32 sum of squares
FEW = 32  # tokens in one float32 sum


def is_narrow(x: Tensor) -> bool:
    """Whether the sums of x (b, n, d), float32, are to be taken in parts: it is large, and its channels fall in parts.

    An accelerator has no copies to fear, and may have no float64; there all float32 is narrow.
    """
    return x.device.type != "cpu" or (x[0].numel() >= LEAST and group_of(x.shape[-1], SHORT) >= 8)


@cache
def group_of(size: int, most: int) -> int:
    """The largest divisor of a size up to `most`."""
    return next(g for g in range(min(size, most), 0, -1) if size % g == 0)


def norms(x: Tensor) -> Tensor:
    """|x_i| of x (b, n, d), (b, n), float64."""
    size = torch.linalg.vector_norm
    if x.dtype == torch.float64:
        return size(x, dim=-1)
    (b, n, d), short = x.shape, group_of(x.shape[-1], SHORT)
    return size(size(x.reshape(b, n, d // short, short), dim=-1).double(), dim=-1)


def token_sum(x: Tensor) -> Tensor:
    """sum_i x_i of x (b, n, d), (b, d), float64."""
    if x.dtype == torch.float64:
        return x.sum(-2)
    b, n, d = x.shape
    few = group_of(n, FEW)
    if few == n:
        return x.sum(-2).double()
    if few >= 4:
        return x.reshape(b, n // few, few, d).sum(-2).double().sum(-2)
    most = n - n % FEW
    return token_sum(x[:, :most]) + x[:, most:].sum(-2).double()


def weighted_sum(x: Tensor, w: Tensor) -> Tensor:
    """sum_i w_i x_i of x (b, n, d) and w (b, n), (b, d), float64."""
    if x.dtype == torch.float64:
        return (w.unsqueeze(-2) @ x).squeeze(-2)
    (b, n, d), w = x.shape, w.to(x.dtype)
    few = group_of(n, FEW)
    if few < 4:
        return token_sum(x * w[..., None])
    parts = torch.bmm(w.reshape(-1, 1, few), x.reshape(-1, few, d)).view(b, n // few, d)
    return parts.double().sum(-2)


def products(x: Tensor, v: Tensor) -> Tensor:
    """x_i . v of x (b, n, d) and one v (b, d) for each sample, (b, n), float64; off by about 1e-7 |x_i| |v|."""
    return torch.bmm(v.to(x.dtype)[:, None], x.mT).squeeze(-2).double()  # x v would take three times as long


def one_inf(x: Tensor, room: Room) -> Tensor:
    """sqrt(|x|_1 |x|_inf) of x (b, n, d): the largest column sum and the largest row sum of absolute values; float64.

    torch adds float32 by pairs, so each sum is off by about 1e-7 of itself.
    """
    with room.lend(x) as size:
        torch.abs(x, out=size)
        return (size.sum(-2).amax(-1).double() * size.sum(-1).amax(-1).double()).sqrt()


def squared_gram(x: Tensor) -> Tensor:
    """tr A^2 of A = x^T x, x (b, n, d): the squares of all x_i . x_j, or of all entries of A where these are fewer.

    (b,), float64. A symmetric matrix is computed in two strips, the second without its first half.
    """
    x = x if x.shape[-2] <= x.shape[-1] else x.mT
    half = x.shape[-2] // 2
    upper, lower = x[:, :half], x[:, half:]
    inner = sum(_square(part @ part.mT) for part in (upper, lower))
    return inner + 2 * _square(upper @ lower.mT)


def _square(G: Tensor) -> Tensor:
    return torch.linalg.vector_norm(G, dim=-1).double().square().sum(-1)
