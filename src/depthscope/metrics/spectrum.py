"""How strongly an attention matrix mixes tokens: its largest action beside the constant vector."""

import math

import torch
from torch import Tensor

from depthscope.errors import ShapeError
from depthscope.metrics.krylov import dominant, finite, largest_singular_value, spectral_radius
from depthscope.metrics.pattern import Pattern, pattern_of
from depthscope.registry import metric

DENSE = 32  # at or below this many tokens LAPACK is faster than any iteration, and exact
DELTA_TOLERANCE = 0.02  # of the residual, relative to the value; the error of a singular value goes with its square
LAMBDA_TOLERANCE = 0.01
SQUARED = 128  # at or below this many, squaring the whole of Pi_2 P finds the spectral radius

Estimate = tuple[Tensor, Tensor]


def _dense(pattern: Pattern) -> Tensor:
    """Pi_2 P in float64."""
    P = torch.cat([P.to(torch.float64, copy=True) for _, P in pattern.blocks()], dim=-2)
    return pattern.centre(P)


def delta_of(pattern: Pattern) -> Estimate:
    """delta and its residual for one part of a pattern, (size,) each."""
    if min(pattern.n, pattern.m) <= DENSE:
        value = _finite(torch.linalg.svdvals, _dense(pattern)).amax(-1)
        return value, torch.zeros_like(value)
    return largest_singular_value(pattern, DELTA_TOLERANCE)


def lambda_2_of(pattern: Pattern) -> Estimate:
    """|lambda_2| and its residual for one part of a pattern, (size,) each."""
    if pattern.is_triangular():
        # The eigenvalues of a triangular P are its diagonal; the first token sees itself alone, which is the 1.
        diagonal = pattern.diagonal().double()
        if pattern.mask is None:
            value = diagonal[:, 1:].amax(-1)
        else:
            first = pattern.mask.int().argmax(-1, keepdim=True)
            value = diagonal.scatter(-1, first, 0.0).amax(-1)
        return value, torch.zeros_like(value)
    if pattern.n <= DENSE:
        A = _dense(pattern)
        value = _finite(torch.linalg.eigvals, pattern.centre(A.mT).mT).abs().amax(-1)
        return value, torch.zeros_like(value)
    if pattern.n <= SQUARED:
        A, bad = finite(_dense(pattern))
        found = dominant(A)
        return torch.where(bad, math.nan, found.radius), found.change
    return spectral_radius(pattern, LAMBDA_TOLERANCE)


def _finite(f, A: Tensor) -> Tensor:
    """f(A), NaN for matrices that are not finite: LAPACK would refuse the whole batch."""
    bad = ~A.isfinite().all(-1).all(-1)
    out = f(torch.where(bad[:, None, None], 0.0, A))
    return torch.where(bad[:, None], math.nan, out)


def _over_parts(of, pattern: Pattern, batch: tuple[int, ...], return_residual: bool):
    pairs = [of(part) for part in pattern.pieces()]
    value, residual = (torch.cat(column).reshape(batch) for column in zip(*pairs, strict=True))
    return (value, residual) if return_residual else value


@metric(
    "attention",
    takes=("P",),
    bounds=(0, math.inf),
    invariant=("token order", "padding"),
    formula=delta_of,
    estimated=True,
)
def delta(
    P: Tensor | None = None,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    causal: bool | None = None,
    mask: Tensor | None = None,
    return_residual: bool = False,
) -> Tensor | Estimate:
    """How much of a difference between tokens one round of attention can pass on at most.

    delta(P) = |Pi_2 P|_2

    P (..., h, n, n) -> (..., h), >= 0: 0 for uniform attention, above 1 possible (a causal P). From q and k
    (..., h, n, d_h) no n x n matrix is built: P = softmax(scale q k^T + bias), scale 1/sqrt(d_h) when None.
    return_residual=True also gives |A^T A v - delta^2 v| / delta, A = Pi_2 P. Yu & Zhang 2023, eq. (12).
    """
    pattern, batch = pattern_of(P, q=q, k=k, scale=scale, bias=bias, causal=causal, mask=mask, where="delta")
    return _over_parts(delta_of, pattern, batch, return_residual)


@metric(
    "attention", takes=("P",), bounds=(0, 1), invariant=("token order", "padding"), formula=lambda_2_of, estimated=True
)
def lambda_2(
    P: Tensor | None = None,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    causal: bool | None = None,
    mask: Tensor | None = None,
    return_residual: bool = False,
) -> Tensor | Estimate:
    """Modulus of the second eigenvalue of attention: how slowly repeated attention forgets differences.

    lambda_2(P) = max |lambda(Pi_2 P)|    (P 1 = 1, so Pi_2 takes out exactly one eigenvalue 1)

    P (..., h, n, n) -> (..., h), in [0, 1]: 0 for uniform attention, 1 for P = I; complex eigenvalues by their
    modulus; for a causal P the largest diagonal entry after the first token's. Arguments as for delta;
    return_residual=True also gives |A v - lambda v|. Yu & Zhang 2023, eq. (17).
    """
    pattern, batch = pattern_of(P, q=q, k=k, scale=scale, bias=bias, causal=causal, mask=mask, where="lambda_2")
    if pattern.n != pattern.m:
        raise ShapeError(
            f"lambda_2: P must be square, as in self-attention; got {pattern.n} queries and {pattern.m} keys. "
            "Only delta and attention_entropy are defined for cross-attention."
        )
    return _over_parts(lambda_2_of, pattern, batch, return_residual)
