"""The largest singular value of A by powers of its Gram matrix: products of whole matrices, which processors like best.

N = A^T A, and B = N^K in few squarings. High powers have few directions left, so that a thin Q B holds nearly all of B,
and what it does not hold is known exactly:   |B|_2^2 <= |Q B|_2^2 + |B|_F^2 - |Q B|_F^2   for orthonormal rows Q.
The root 1 / (2 K) makes what is still open small. Nothing is random in these bounds.
"""

import torch
from torch import Tensor

from depthscope.metrics.scratch import Scratch

THIN = 8  # rows of Q
FIRST = {torch.float32: 2, torch.float64: 6}  # squarings: as high a power as most heads ask for ...
LAST = 6  # ... and more for those that are not known well enough
TINY = 1e-30


def largest_by_gram(
    A: Tensor, N: Tensor, known: Tensor, tolerance: float, scratch: Scratch | None = None
) -> tuple[Tensor, Tensor]:
    """s = |A|_2 of A (b, n, m) from below, |A q| for the best q of Q, and how much larger it may be, each (b,) float64.

    N = A^T A; known (b,): what s is at most. More squarings follow for heads whose error is above tolerance * value.
    Both are NaN where A is not finite.
    """
    scratch = scratch or Scratch()
    whole = torch.linalg.vector_norm(A, dim=(-2, -1)).double()
    most = torch.minimum(known, whole)
    size = torch.linalg.vector_norm(N, dim=(-2, -1), keepdim=True).clamp_min(TINY)
    B, log = torch.mul(N, 1 / size, out=scratch.take("N", tuple(N.shape), N)), size.flatten().double().log()
    e = A.shape[-2] * torch.finfo(A.dtype).eps / 2 * whole.square() / log.exp()  # what B is off by, at most
    first = FIRST[A.dtype]
    B, log, e = _squared(B, log, e, 1, first, scratch)
    value, error = _between(A, B, log, e, 2**first, most)
    left = torch.arange(len(A), device=A.device)
    for i in range(first + 1, LAST + 1):
        open_ = error[left] > tolerance * value[left]
        if not bool(open_.any()):
            break
        left = left[open_]
        B, log, e = _squared(B[open_], log[open_], e[open_], i, i, scratch)
        value[left], error[left] = _between(A[left], B, log, e, 2**i, most[left])
    return value, error


def _squared(
    B: Tensor, log: Tensor, e: Tensor, first: int, last: int, scratch: Scratch
) -> tuple[Tensor, Tensor, Tensor]:
    """B of size one after the squarings number first to last, log |N^K| / K, and what B is off by with all rounding."""
    rounding = B.shape[-1] * torch.finfo(B.dtype).eps / 2
    for i in range(first, last + 1):
        B, size = unit(torch.bmm(B, B, out=scratch.take(f"N^K {i % 2}", tuple(B.shape), B)))
        log, e = log + size / 2**i, (2 * e + e * e + rounding) / size.exp()
    return B, log, e


def _between(A: Tensor, B: Tensor, log: Tensor, e: Tensor, K: int, most: Tensor) -> tuple[Tensor, Tensor]:
    """|A|_2 from below, and how much larger it may be, from B = N^K / exp(K log) + something of size e."""
    Q = _dominant_rows(B)
    W, A_Q = (Q @ B).double(), (Q @ A.mT).double()
    beside = 1 - W.square().sum((-2, -1)) + 16 * B.shape[-1] * torch.finfo(B.dtype).eps
    norms = _largest(torch.cat((W @ W.mT, A_Q @ A_Q.mT)))
    in_Q, value = norms[: len(A)], norms[len(A) :].sqrt()
    high = (0.5 * (log + ((in_Q + beside.clamp_min(0.0)).sqrt() + e).log() / K)).exp()
    return value, (torch.minimum(high, most) - value).clamp_min(0.0)


def _largest(T: Tensor) -> Tensor:
    """The largest eigenvalue of T (b, k, k), T >= 0; NaN where T is not finite, which LAPACK refuses."""
    bad = ~T.isfinite().all(-1).all(-1)
    found = torch.linalg.eigvalsh(torch.where(bad[:, None, None], 0.0, T))[:, -1]
    return torch.where(bad, torch.nan, found.clamp_min(0.0))


def _dominant_rows(B: Tensor) -> Tensor:
    """Orthonormal rows (b, THIN, r) near the dominant directions of symmetric B."""
    r = B.shape[-1]
    G = torch.randn(min(THIN, r), r, generator=torch.Generator().manual_seed(0)).to(B)
    Y = ((G.expand(len(B), *G.shape) @ B) @ B) @ B
    Y = torch.where(Y.isfinite().all(-1, keepdim=True), Y, 0.0)  # LAPACK refuses the others
    return torch.linalg.qr(Y.mT).Q.mT.contiguous()


def unit(X: Tensor) -> tuple[Tensor, Tensor]:
    """X (b, r, m) of size one, in its place, and the logarithm of its size, (b,), float64."""
    size = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True).clamp_min(TINY)
    return X.mul_(1 / size), size.flatten().double().log()
