"""Largest singular value and spectral radius of Pi_2 P from products with P alone, many heads at once.

Both start from one fixed random vector, so that the same P always gives the same number, and stop as soon as the
residual of every head is below the tolerance.
"""

import torch
from torch import Tensor

from depthscope.metrics._pattern import Pattern

TOLERANCE = 1e-3  # of the residual, relative to the value found
STEPS = 64  # the most products one head may cost
TINY = 1e-30  # below this a start vector has met nothing but zeros


def largest_singular_value(pattern: Pattern, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
    """|Pi_2 P|_2 and |A^T A v - s^2 v| / s for A = Pi_2 P, each (size,), by Lanczos with full reorthogonalisation."""
    basis = [_start(pattern, pattern.m)]
    steps = min(pattern.m, STEPS)
    T = torch.zeros(pattern.size, steps + 1, steps + 1, dtype=torch.float64, device=pattern.device)
    value = residual = torch.zeros(pattern.size, dtype=torch.float64)
    for j in range(steps):
        w = pattern.normal(basis[j])
        h, w, beta = _orthogonalise(w, basis)
        T[:, : j + 1, j] = h
        T[:, j + 1, j] = beta
        if (j + 1) % 4 == 0 or j + 1 == steps:
            theta, y = torch.linalg.eigh(T[:, : j + 1, : j + 1])
            value = theta[:, -1].clamp_min(0).sqrt()
            residual = beta * y[:, -1, -1].abs() / value.clamp_min(TINY**0.5)
            if bool((residual <= tolerance * value + TINY).all()):
                break
        basis.append(w)
    return value, residual


def spectral_radius(pattern: Pattern, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
    """max |lambda(Pi_2 P)| and the residual |A v - lambda v|, each (size,), by Arnoldi (complex pairs included)."""
    basis = [pattern.centre(_start(pattern, pattern.n))]
    basis[0] = basis[0] / basis[0].norm(dim=-2, keepdim=True)
    steps = min(pattern.n - 1, STEPS)
    H = torch.zeros(pattern.size, steps + 1, steps + 1, dtype=torch.float64, device=pattern.device)
    value = residual = torch.zeros(pattern.size, dtype=torch.float64)
    for j in range(steps):
        w = pattern.centre(pattern.times(basis[j]))
        h, w, beta = _orthogonalise(w, basis)
        H[:, : j + 1, j] = h
        H[:, j + 1, j] = beta
        if (j + 1) % 8 == 0 or j + 1 == steps:
            theta, y = torch.linalg.eig(H[:, : j + 1, : j + 1])
            value, top = theta.abs().max(-1)
            last = y[:, -1, :].abs().gather(-1, top[:, None])[:, 0]
            residual = beta * last
            if bool((residual <= tolerance * value + TINY).all()):
                break
        basis.append(w)
    return value, residual


def _start(pattern: Pattern, length: int) -> Tensor:
    v = torch.randn(length, 1, generator=torch.Generator().manual_seed(0))
    v = v - v.mean()
    sample = next(pattern.blocks())[1]
    v = v.to(sample).expand(pattern.size, length, 1)
    if pattern.mask is not None:
        v = pattern.centre(v)
    return (v / v.norm(dim=-2, keepdim=True)).contiguous()


def _orthogonalise(w: Tensor, basis: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Coefficients h (size, j), the next basis vector and its length; zero where the space is exhausted."""
    Q = torch.cat(basis, dim=-1)  # (size, length, j)
    before = w.norm(dim=(-2, -1))
    h = Q.mT @ w
    w = w - Q @ h
    again = Q.mT @ w  # twice is enough: once leaves float32 noise along the old vectors
    w = w - Q @ again
    beta = w.norm(dim=(-2, -1))
    beta = torch.where(beta > 1e-6 * before, beta, 0.0)
    unit = torch.where(beta[:, None, None] > 0, w / beta[:, None, None].clamp_min(TINY), 0.0)
    return (h + again).squeeze(-1).double(), unit, beta.double()
