"""The space of a few powers of A = Pi_2 P on random vectors, known by its inner products alone.

S = (V, A V, ..., A^k V): a product with P for each power, and one product S S^T in float64 for all that Krylov's method
asks: no vector is made orthogonal to another. The price is rounding, which a space of nearly parallel vectors
magnifies; heads that suffer from it are left to krylov.py.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.krylov import MISSED, TINY, WIDTH, dominant, finite, spectral_radius, start
from depthscope.metrics.pattern import Pattern

POWERS = (13, 16)  # of A: for most heads, and where these do not settle it
ROUNDED = 8  # eps, the relative error of a product with P, generously


class Radius(NamedTuple):
    """max |lambda(A)|, the largest it may be, the residual, and what rounding may hide of that; (size,) each.

    bad: heads that are not finite.
    """

    value: Tensor
    high: Tensor
    residual: Tensor
    noise: Tensor
    bad: Tensor


def radius_by_powers(pattern: Pattern, tolerance: float) -> tuple[Tensor, Tensor]:
    """As spectral_radius of krylov.py, which gives the same numbers for twice the time."""
    length = (POWERS[-1] + 1) * WIDTH
    S = torch.empty(pattern.size, length, pattern.n, dtype=pattern.like.dtype, device=pattern.device)
    S[:, :WIDTH] = start(pattern, pattern.n)
    grown: list[Tensor] = []
    for powers in POWERS:
        _go_on(pattern, S, grown, powers)
        found = _radius(S[:, : (powers + 1) * WIDTH], torch.stack(grown, -1), pattern.count().double())
        if bool((found.bad | (found.residual <= tolerance * found.value + TINY)).all()):
            break
    value, error = found.value, torch.maximum(found.value, found.high - found.value)
    blurred = ~found.bad & ~(found.noise <= tolerance * value + TINY)
    if bool(blurred.any()):
        slow = spectral_radius(pattern, tolerance)
        value, error = (torch.where(blurred, *both) for both in zip(slow, (value, error), strict=True))
    return value, error


def _go_on(pattern: Pattern, S: Tensor, grown: list[Tensor], powers: int) -> None:
    """A^i V into S (size, rows, n), made to have rows of size one on average, and how much each one had grown."""
    for i in range(len(grown) + 1, powers + 1):
        Y = pattern.centre(pattern.image(S[:, (i - 1) * WIDTH : i * WIDTH]))
        size = torch.linalg.vector_norm(Y, dim=(-2, -1)).clamp_min(TINY) / WIDTH**0.5
        torch.mul(Y, 1 / size[:, None, None], out=S[:, i * WIDTH : (i + 1) * WIDTH])
        grown.append(size.double())


def _radius(S: Tensor, grown: Tensor, n: Tensor) -> Radius:
    """From S (size, (k + 1) WIDTH, n) and the growth at each step (size, k): A s = grown s' from each step to the next.

    K = S S^T = L L^T gives orthonormal V = L^-1 S, and with it H = V A V^T and the products of the rows of A V.
    """
    wide = S.double()
    K, bad = finite(wide @ wide.mT)
    a = grown.nan_to_num(0.0, 0.0).repeat_interleave(WIDTH, -1)[..., None]
    L, failed = torch.linalg.cholesky_ex(K[:, :-WIDTH, :-WIDTH])
    L = torch.where((failed > 0)[:, None, None], torch.eye(L.shape[-1], dtype=L.dtype, device=L.device), L)
    H = _in_V(L, a * K[:, WIDTH:, :-WIDTH])
    images = _in_V(L, a * K[:, WIDTH:, WIDTH:] * a.mT)
    value, theta, y = dominant(H)
    of_y = lambda M: (y.mH @ (M.to(y.dtype) @ y)).flatten()  # noqa: E731
    square = of_y(images).real + theta.abs().square() - 2 * (theta.conj() * of_y(H)).real
    in_S = torch.linalg.solve_triangular(L.mT, torch.cat((y.real, y.imag), -1), upper=True)
    noise = ROUNDED * torch.finfo(S.dtype).eps * torch.linalg.vector_norm(a * in_S, dim=(-2, -1))
    size = grown.log().cumsum(-1) + (1.01 * (WIDTH * n / MISSED).sqrt()).log()  # log |A^k|, at most
    high = (size / torch.arange(1, grown.shape[-1] + 1, device=S.device)).exp().amin(-1).clamp_max(1.0)
    noise = torch.where(failed > 0, torch.inf, noise)
    residual = square.clamp_min(0.0).sqrt() + noise
    value, high = (torch.where(bad, torch.nan, number) for number in (torch.minimum(value, high), high))
    return Radius(value, high, residual, noise, bad)


def _in_V(L: Tensor, M: Tensor) -> Tensor:
    """(L^-1 M L^-T)^T."""
    half = torch.linalg.solve_triangular(L, M, upper=False)
    return torch.linalg.solve_triangular(L, half.mT, upper=False)
