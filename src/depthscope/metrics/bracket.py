"""Two numbers that the spectral radius of a matrix lies between, from its powers, rounding included.

For every K and every norm   |tr A^K / n|^(1/K) <= rho(A) <= |A^K|^(1/K).

A small residual |A v - t v| says nothing where A is far from normal, and attention that looks back along the tokens is:
a chain of forty tokens has pseudo-eigenvalues of modulus 0.6 and no eigenvalue but 0. Powers cannot be fooled.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.largest_eigenvalue import largest_modulus

PLANE = 8  # dimensions in which eigenvalues of nearly one modulus are told apart


class Bracket(NamedTuple):
    """low <= rho <= high, and the likeliest number in between, (b,) each, float64."""

    low: Tensor
    high: Tensor
    value: Tensor

    @property
    def error(self) -> Tensor:
        """How far the value may be off."""
        return torch.maximum(self.high - self.value, self.value - self.low)


def spectral_bracket(A: Tensor, error: Tensor, *, squarings: int, tolerance: float) -> Bracket:
    """A bracket of rho(A + E) for every E with |E|_F <= error (b,), A (b, n, n) in float32 or float64.

    B = A^K / size^K with K = 2^i by repeated squaring, |B|_F <= 1; e bounds what B is off by, with the rounding of each
    product: e <- 2 |B|_2 e + e^2 + n eps |B|_2. It ends early where every head is known to the tolerance.
    """
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    if n == 0:
        return Bracket(*torch.zeros(3, len(A), dtype=torch.float64, device=A.device))
    B, e, spare = A.clone(), error.double(), torch.empty_like(A)
    log = torch.zeros_like(e)  # A^K = exp(K log) B
    low, high = torch.zeros_like(e), torch.full_like(e, math.inf)
    for i in range(squarings + 1):
        K = 2**i
        earlier, size = log, (torch.linalg.vector_norm(B, dim=(-2, -1)).double() + e).clamp_min(1e-290)
        log = log + size.log() / K
        B /= size[:, None, None].to(B.dtype)
        e = e / size + n * eps
        norm = _two_norm(B, spare).clamp_max(1.0)
        if i % 2 == squarings % 2:
            high = torch.minimum(high, (log + (norm + e).clamp_max(1 + n * eps).log() / K).exp())
            low = torch.maximum(low, by_trace(B.diagonal(dim1=-2, dim2=-1).sum(-1), e, n, log, K))
            settled = (high - low <= tolerance * high) | (e >= 1)
            if i == squarings or bool(settled.all()):
                break
        before, B = B, torch.bmm(B, B, out=spare)  # fresh memory would cost more than the product
        spare = before
        if i >= 8 and bool((low < 0.9 * high).any()):
            # tr A^3K: that of A^K may vanish where eigenvalues of one modulus cancel
            trace = torch.linalg.vecdot(before.mT.flatten(-2), B.flatten(-2))
            low = torch.maximum(low, by_trace(trace, e * (3 + 3 * e + e * e) + n * eps, n, log, 3 * K))
        e = 2 * norm * e + e * e + n * eps * norm
    if bool((low < 0.9 * high).any()):
        low = torch.maximum(low, _by_normality(B, e, n, log, K))
    high = torch.maximum(high, low)
    theta = _in_dominant_plane(A, B)
    grown = (2 * log - earlier).exp()  # (|A^K| / |A^(K/2)|)^(2/K): what the norm adds to the power cancels
    sure = (low <= theta) & (theta <= high) & (low > 0.5 * high)  # a plane does not hold several of one modulus
    return Bracket(low, high, torch.where(sure, theta, grown).clamp(low, high))


def _two_norm(B: Tensor, spare: Tensor) -> Tensor:
    """sqrt(|B|_1 |B|_inf) >= |B|_2, (b,), float64; spare is written into."""
    size = torch.abs(B, out=spare)
    return (size.sum(-1).amax(-1).double() * size.sum(-2).amax(-1).double()).sqrt()


def by_trace(trace: Tensor, e: Tensor, n: int, log: Tensor, K: float | Tensor) -> Tensor:
    """|tr B / n|^(1/K) size, at least: the trace of what B is off by is at most sqrt(n) e."""
    least = trace.double().abs() - math.sqrt(n) * e
    return torch.where(least > 0, (log + (least / n).clamp_min(1e-300).log() / K).exp(), 0.0)


def _by_normality(B: Tensor, e: Tensor, n: int, log: Tensor, K: float) -> Tensor:
    """A lower bound where B is nearly normal, which permutations are, whose traces may vanish (Henrici 1962).

    |B|_F^2 - sum |lambda_i|^2 <= sqrt((n^3 - n) / 12) |B^T B - B B^T|_F
    """
    departure = torch.linalg.vector_norm(B.mT @ B - B @ B.mT, dim=(-2, -1)).double() + 4 * e + 2 * e.square()
    size = torch.linalg.vector_norm(B, dim=(-2, -1)).double() - e
    least = size.clamp_min(0).square() - math.sqrt((n**3 - n) / 12) * departure
    return torch.where(least > 0, (log + (least / n).clamp_min(1e-300).log() / (2 * K)).exp(), 0.0)


def _in_dominant_plane(A: Tensor, power: Tensor) -> Tensor:
    """The largest modulus of an eigenvalue of A in the space that a high power maps onto, (b,), in float64."""
    start = torch.randn(A.shape[-1], min(PLANE, A.shape[-1]), generator=torch.Generator().manual_seed(1)).to(power)
    plane = torch.linalg.qr((power @ start).double()).Q
    image = (A @ plane.to(A.dtype)).double()
    return largest_modulus(plane.mT @ image)
