"""Means over rows of softmax attention: what scores do to tokens on the way forward, to gradients on the way back.

A row is P = softmax(sqrt(w z) xi). xi_j is token j, on the sphere of 1 / eta dimensions, along the query; z, of mean 1,
is the spread of one row: the length of its query in d_h dimensions, and the spread of the keys.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vecdot as dot
from torch.quasirandom import SobolEngine

CALM, SHARP = 16_384, 65_536  # scores that are drawn for a mean: few tokens rule a sharp row, so it needs more
SHARP_FROM = 0.5  # of w
ROWS = 32  # at least, whatever n is


class RowMeans(NamedTuple):
    """Means over rows P (n,), or two rows P and P_o where two are meant; H = 1 - 1 P^T, C = Gram matrix, D = 1."""

    Y: float  # sum P^2, the participation ratio
    Y_o: float  # sum P P_o
    V_o: float  # variance of sum P P_o
    mix: float  # |sum P x|^2, x centred
    twin: float  # sum_{j != l} P_j P_l xi_j xi_l
    drift: float  # sum P xi
    B_q: float  # sum_jl P_j P_l (H C H^T)_jl K_jl, K = Gram matrix of the keys
    B_k: float  # |query|^2 sum_j P_j^2 (H C H^T)_jj
    B_o: float  # what B_q and B_k are for two rows


@lru_cache(maxsize=1024)
def row_means(w: float, rho: float, eta: float, n: int, d_h: int) -> RowMeans:
    """Means over rows of n scores with variance w, by fixed draws: the same answer every time.

    xi has C_jl = eta xi_j xi_l + a rest of variance eta - eta^2 for j != l, and C_jj = 1. z has variance
    2 (1 / d_h + eta). rho is the correlation of two queries. Nothing is fitted.
    """
    x, y, length, spread = _draws(n, CALM if w < SHARP_FROM else SHARP)
    y = rho * x + max(1 - rho * rho, 0.0) ** 0.5 * y
    across = (1 / eta - 1) * _chi2(length, 1 / eta - 1)  # of a token's squared length, what is not along the query
    x, y = (g * (eta * (g * g + across)).rsqrt() for g in (x, y))
    z = _chi2(spread, d_h / (1 + eta * d_h))
    P, P_o = ((w * z_i).sqrt().unsqueeze(-1).mul(xi).softmax(-1) for z_i, xi in zip(z, (x, y), strict=True))

    P2, x2 = P * P, x * x
    Y, Y3, m, m2 = dot(P, P), dot(P2, P), dot(P, x), dot(P, x2)
    Yx, Yxx, Y3xx = dot(P2, x), dot(P2, x2), dot(P2 * P, x2)
    Yx3, Yx4 = dot(P2 * x, x2), dot(P2 * x2, x2)

    B = Y - 2 * Y3 + Y * Y
    B_along = Yxx - 2 * Yx * m + Y * m * m  # the keys' part along the query
    B_pairs = B_along - (Yxx - 2 * Y3xx + Y * Yxx)
    tilt = -2 * (Yx * m - Y3xx) + Y * (m * m - Yxx)  # the row's mean leans to the tokens it weighs
    variance = m2 - m * m
    variance_pairs = variance**2 - Yx4 + 2 * m * Yx3 - m * m * Yxx
    pairs = (1 - Y) * (1 - 2 * Y).clamp(min=0)
    B_across = B + eta * (tilt + B_pairs) + (eta * eta * variance**2 + eta - eta * eta) * pairs
    B_q = (1 - 1 / d_h) * B_across + (B_along + eta * variance_pairs) / d_h
    B_k = (1 + (z[0] - 1) / (1 + eta * d_h)) * (B + eta * tilt)
    O = dot(P, P_o)  # noqa: E741, the overlap of two rows
    twin = m * m - Yxx
    means = torch.stack([Y, O, (O - O.mean()) ** 2, Y + eta * twin, twin, m, B_q, B_k, O * (1 - 1 / n)]).mean(-1)
    return RowMeans(*means.tolist())


@lru_cache(maxsize=16)
def _draws(n: int, numbers: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standard normals: scores of two rows and lengths of tokens (rows, n), spreads of the two rows (2, rows)."""
    rows = 1 << math.ceil(math.log2(max(numbers / n, ROWS)))  # Sobol's points are balanced in powers of two
    if 3 * n + 2 <= SobolEngine.MAXDIM:
        u = SobolEngine(3 * n + 2, scramble=True, seed=0).draw(rows, dtype=torch.float64)
        g = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9))
    else:  # so many tokens that a row is its own average
        g = torch.randn(rows, 3 * n + 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, y, length, spread = g.split([n, n, n, 2], -1)
    return x.contiguous(), y.contiguous(), length.contiguous(), spread.T.contiguous()


def _chi2(g: Tensor, degrees: float) -> Tensor:
    """chi^2 / degrees of freedom from a standard normal g (Wilson & Hilferty 1931)."""
    a = 2 / (9 * degrees)
    return (1 - a + a**0.5 * g).clamp(min=0) ** 3
