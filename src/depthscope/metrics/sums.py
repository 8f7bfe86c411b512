"""Sums over tokens and channels of float32 numbers: short sums in float32, sums of those in float64.

A float64 copy of a state costs as much as ten passes over it. A float32 sum of a few dozen numbers is off by about
1e-7 of them, now up and now down; over the thousands of short sums of a state that cancels to about 1e-8.
In float64 nothing here is rounded to float32.
"""

from functools import cache

import torch
from torch import Tensor

LEAST = 1 << 12  # numbers in a sample: a float64 copy of fewer costs less than the calls that avoid it
BLOCK = 1 << 17  # numbers that stay in the cache from one pass over them to the next
SHORT = 64  # channels in one float32 sum of squares
FEW = 32  # tokens in one float32 sum
MANY_ROWS = 256  # of a symmetric matrix: a quarter of fewer would be a slow product


def is_narrow(x: Tensor) -> bool:
    """Whether the sums of x (b, n, d), float32, are to be taken in parts: it is large, and its channels fall in parts.

    An accelerator has no copies to fear, and may have no float64; there all float32 is narrow.
    """
    return x.device.type != "cpu" or (x[0].numel() >= LEAST and group_of(x.shape[-1], SHORT) >= 8)


@cache
def group_of(size: int, most: int) -> int:
    """The largest divisor of a size up to `most`."""
    return next(g for g in range(min(size, most), 0, -1) if size % g == 0)


@cache
def cuts(b: int, n: int, d: int) -> list[tuple[slice, slice]]:
    """Samples and tokens of blocks of about BLOCK numbers."""
    if n * d <= BLOCK:
        step = BLOCK // (n * d)
        return [(slice(i, min(i + step, b)), slice(0, n)) for i in range(0, b, step)]
    step = max(FEW, BLOCK // d // FEW * FEW)
    return [(slice(i, i + 1), slice(s, min(s + step, n))) for i in range(b) for s in range(0, n, step)]


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


def squared_gram(x: Tensor, scale: Tensor) -> Tensor:
    """tr A^2 of A = s^2 x^T x, x (b, n, d), s (b,): squares of all x_i . x_j, or of A's entries where these are fewer.

    (b,), float64. Inner products are brought near one by a power of two before they are squared: fourth powers leave
    float32's range early. A large symmetric matrix is computed in strips, each without what those above it have.
    """
    x = x if x.shape[-2] <= x.shape[-1] else x.mT
    n, exact = x.shape[-2], scale.square()
    power = exact.log2().floor().exp2()
    s = power.to(x.dtype)[:, None, None]
    step = -(-n // (2 if n < MANY_ROWS else 4))
    found = torch.zeros_like(scale)
    for i in range(0, n, step):
        G = (x[:, i : i + step] @ x[:, i:].mT).mul_(s)
        found += _square(G[..., :step])
        if i + step < n:
            found += 2 * _square(G[..., step:])
    return found * (exact / power).square()


def _square(G: Tensor) -> Tensor:
    return torch.linalg.vector_norm(G, dim=-1).double().square().sum(-1)
