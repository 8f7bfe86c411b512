"""How strongly an attention matrix mixes tokens: its largest action beside the constant vector."""

import math
from functools import partial

import torch
from torch import Tensor

from depthscope.errors import ShapeError
from depthscope.metrics.bracket import Bracket, spectral_bracket
from depthscope.metrics.eigenvectors import radius_by_eigenvectors
from depthscope.metrics.gram_powers import largest_by_gram
from depthscope.metrics.krylov import finite, largest_singular_value
from depthscope.metrics.largest_eigenvalue import largest_modulus
from depthscope.metrics.mixing import centred_rows, gram, in_one
from depthscope.metrics.pattern import Pattern, pattern_of
from depthscope.metrics.power_space import radius_by_powers
from depthscope.metrics.reduced import reduced
from depthscope.metrics.thin_powers import thin_bracket
from depthscope.registry import metric

DENSE = 32  # at or below this many tokens LAPACK finds singular values faster than any iteration, and exactly
EXACT = 16  # the same of eigenvectors
DELTA_TOLERANCE = 0.02  # of the residual, relative to the value; the error of a singular value goes with its square
LAMBDA_TOLERANCE = 0.01
TOLERANCE = 1e-3
NARROW = 1e-10  # rows that sum to 1 no better are of float32, or of less
HALF = 1e-5  # rows that sum to 1 no better are of half precision
EPS = torch.finfo(torch.float64).eps
DOUBTFUL = 0.1  # a head whose bound is wider, relative to the value, is looked at alone

Estimate = tuple[Tensor, Tensor]  # the value, and how far it may be off


ALONE, IN_SCANS = 512, 32  # tokens up to which powers of the whole of Pi_2 P are taken in float64
FEW = 128  # tokens up to which products of whole matrices in the precision of P are the fastest way
SQUARINGS = 14
SMALL = 1e-3  # in a scan, delta and lambda_2 below this are nothing: their error counts against it


def _dense(pattern: Pattern) -> Tensor:
    """P in float64."""
    return in_one(pattern).to(torch.float64, copy=True)


def delta_of(pattern: Pattern) -> Estimate:
    """delta and how far it may be off for one part of a pattern, (size,) each."""
    if min(pattern.n, pattern.m) > DENSE:
        few = max(pattern.n, pattern.m) <= FEW
        return _delta_by_gram(pattern) if few else largest_singular_value(pattern, DELTA_TOLERANCE)
    A, bad = finite(pattern.centre(_dense(pattern).mT).mT)
    A = A if pattern.n >= pattern.m else A.mT
    value = torch.linalg.eigvalsh(A.mT @ A)[..., -1].clamp_min(0).sqrt()  # faster than singular values, and as exact
    error = min(A.shape[-2:]) * torch.finfo(A.dtype).eps * pattern.size_of_rows() + _renormalised(pattern)
    return torch.where(bad, math.nan, value), torch.where(bad, math.nan, error)


def _renormalised(pattern: Pattern) -> Tensor:
    """What rows without their padding are off by, (size,): they are made to sum to 1 in the precision of P."""
    here = 0.0 if pattern.mask is None else torch.finfo(pattern.like.dtype).eps
    return here * pattern.size_of_rows()


def _delta_by_gram(pattern: Pattern) -> Estimate:
    """delta_of in the precision of P, by powers of a Gram matrix."""
    A = pattern.once(centred_rows)
    A, N = (A, pattern.once(gram)) if pattern.n >= pattern.m else (A.mT, torch.bmm(A, A.mT))
    most = pattern.received.amax(-1).sqrt()  # |Pi_2 P|_2^2 <= |P|_2^2 <= |P|_1 |P|_inf
    value, error = largest_by_gram(A, N, most, DELTA_TOLERANCE, pattern.scratch)
    return value, error + 4 * torch.finfo(A.dtype).eps * pattern.size_of_rows()


def lambda_2_of(pattern: Pattern, whole: int = IN_SCANS) -> Estimate:
    """|lambda_2| and how far it may be off for one part of a pattern, (size,) each."""
    if pattern.sink:
        few = pattern.n <= ALONE
        return _of_open_rows(pattern) if few else radius_by_powers(pattern, LAMBDA_TOLERANCE)
    if pattern.is_triangular():
        # The eigenvalues of a triangular P are its diagonal; the first token sees itself alone, which is the 1.
        diagonal = pattern.diagonal().double()
        if pattern.mask is None:
            value = diagonal[:, 1:].amax(-1)
        else:
            first = pattern.mask.int().argmax(-1, keepdim=True)
            value = diagonal.scatter(-1, first, 0.0).amax(-1)
        return value, _renormalised(pattern)
    if pattern.n <= whole:
        return _by_powers(pattern)
    return _by_thin_powers(pattern) if pattern.n <= FEW else radius_by_powers(pattern, LAMBDA_TOLERANCE)


def _of_open_rows(pattern: Pattern) -> Estimate:
    """max |lambda(Pi_2 P)| where rows sum to less than one: P has no eigenvalue 1 that could be taken out."""
    A, bad = finite(pattern.centre(_dense(pattern).mT).mT)
    value = largest_modulus(A)
    return torch.where(bad, math.nan, value), torch.where(bad, math.nan, 4 * EPS * pattern.size_of_rows())


def _by_powers(pattern: Pattern) -> Estimate:
    """lambda_2_of by the whole of Pi_2 P in float64."""
    P, bad = finite(_dense(pattern))
    sums = P.sum(-1, keepdim=True)  # of narrow rows not quite 1, and far from normal heads take that for much
    off = torch.where(sums > 0, sums - 1, 0.0).abs().amax((-2, -1))
    P = torch.where((sums > 0) & (off > NARROW)[:, None, None], P / sums, P)
    A = pattern.centre(pattern.centre(P).mT).mT  # Pi_2 P Pi_2 has the eigenvalues of Pi_2 P
    rounding = torch.where(bad, 0.0, 4 * EPS * pattern.size_of_rows())
    if pattern.n <= EXACT:
        value, error = radius_by_eigenvectors(A, rounding)
        error = error + torch.where(off < HALF, 2 * off, 0.0)  # in half precision P as it was given is off by percents
    else:
        found = spectral_bracket(A, rounding, squarings=SQUARINGS, tolerance=TOLERANCE)
        value, error = found.value, found.error + 2 * off
    for i in (~bad & ~(error <= DOUBTFUL * value)).nonzero().flatten().tolist():  # far from normal: each by itself
        keep = slice(None) if pattern.mask is None else pattern.mask[i]
        whole = P[i][keep][:, keep]
        part = reduced(whole, EPS)
        again = spectral_bracket(part.A, part.error, squarings=2 * SQUARINGS, tolerance=TOLERANCE)
        again = Bracket(*(column.clamp_min(part.known) for column in again))
        if again.error + 2 * off[i] < error[i]:
            value[i], error[i] = again.value, again.error + 2 * off[i]
    return torch.where(bad, math.nan, value.clamp_max(1.0)), torch.where(bad, math.nan, error)


def _by_thin_powers(pattern: Pattern) -> Estimate:
    """lambda_2_of in the precision of P; by the whole of Pi_2 P for heads that are not known well then."""
    P = in_one(pattern)
    sums = P.sum(-1)
    off = torch.where(sums > 0, sums - 1, 0.0).abs().amax(-1).double()  # narrow rows do not quite sum to 1
    found = thin_bracket(pattern.once(centred_rows), tolerance=DOUBTFUL, floor=SMALL, scratch=pattern.scratch)
    noise = torch.finfo(P.dtype).eps * pattern.size_of_rows()
    value, error = found.value.clamp_max(1.0), found.error + noise + 2 * off
    bad = ~P.sum((-2, -1)).isfinite()
    doubtful = (~bad & ~(error <= DOUBTFUL * value.clamp_min(SMALL))).nonzero().squeeze(-1)
    if len(doubtful):
        mask = None if pattern.mask is None else pattern.mask[doubtful]
        few, _ = pattern_of(P[doubtful], mask=mask, where="lambda_2", trusted=True)
        again, its_error = _by_powers(few)
        better = ~(its_error >= error[doubtful])
        value[doubtful[better]], error[doubtful[better]] = again[better], its_error[better]
    return torch.where(bad, math.nan, value), torch.where(bad, math.nan, error)


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
    return_residual=True also gives how far it may be off: with more than 32 tokens the value is a lower bound, and the
    error fails once in a million heads (random vectors must not miss a direction). Yu & Zhang 2023, eq. (12).

    Examples:
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> round(float(ds.metrics.delta(P)), 3)
        0.346
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
    return_residual=True also gives how far it may be off, rounding included: at most 512 tokens, from powers of Pi_2 P;
    beyond them only an upper bound is known, and the error is as large as the value. Yu & Zhang 2023, eq. (17).

    Examples:
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> round(float(ds.metrics.lambda_2(P)), 3)
        0.283
    """
    pattern, batch = pattern_of(P, q=q, k=k, scale=scale, bias=bias, causal=causal, mask=mask, where="lambda_2")
    if pattern.n != pattern.m:
        raise ShapeError(
            f"lambda_2: P must be square, as in self-attention; got {pattern.n} queries and {pattern.m} keys. "
            "Only delta and attention_entropy are defined for cross-attention."
        )
    return _over_parts(partial(lambda_2_of, whole=ALONE), pattern, batch, return_residual)
