"""Two numbers that the spectral radius of A = Pi_2 P lies between, from a thin product that stands for a power of A.

High powers have few directions left:   A^K = c (W^T Q + E),   Q, W (THIN, n).
E, with the rounding on the way to Q and W, is measured on random vectors: g A^K by K / 8 products with A^8, in the
precision of P. Heads of which A^8 is little more than rounding are not measured here. Powers of W^T Q cost next to
nothing, (W^T Q)^j = W^T M^(j-1) Q with M = Q W^T, and bound the radius from both sides as in bracket.py. What rounding
could do at worst is ten thousand times what it does, and would bound nothing.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.bracket import Bracket, by_trace
from depthscope.metrics.gram_powers import TINY, unit
from depthscope.metrics.scratch import Scratch

SQUARINGS = 3  # products of whole matrices
BASE = 2**SQUARINGS  # the power of A that thin products are taken with
BLURRED = 0.01  # how far rounding may have moved A^BASE: float64 is asked beyond
THIN = 24  # rows of Q and W
PROBES = 16  # random vectors
LEAST = 1.45  # chi^2 with 16 degrees of freedom is below this once in a million
WILD = 1.2  # |A^K|^(1/K) over the radius, from which on rounding of A might decide: float64 is asked
FIRST, LAST = 32, 64  # K, doubled for the heads that are not known well enough
BOUNDED = 6  # doublings of powers of W^T Q that bound the radius from both sides
FURTHER = 4  # doublings that make the value better, which is known far better than it is bounded


class Work(NamedTuple):
    """Heads on their way: B = A^BASE of size one, and g A^K of the random vectors g; logarithms of sizes."""

    B: Tensor
    log_B: Tensor
    Y: Tensor
    log_Y: Tensor

    def of(self, heads: Tensor) -> "Work":
        return Work(*(part[heads] for part in self))


def thin_bracket(A: Tensor, *, tolerance: float, floor: float, scratch: Scratch | None = None) -> Bracket:
    """A bracket of rho(A) for A (b, n, n).

    K is doubled where the error is above tolerance * max(value, floor). The bracket fails once in a million heads.
    """
    high = torch.linalg.vector_norm(A, dim=(-2, -1)).double()
    found = Bracket(torch.zeros_like(high), high, torch.zeros_like(high))
    work, rounded = _begin(A, high, scratch or Scratch())
    sound = rounded < BLURRED
    left = sound.nonzero().squeeze(-1)
    if len(left) < len(A):
        work = work.of(sound)
    K, steps = FIRST, FIRST
    while len(left):
        work = _further(work, steps)
        new = _of_power(work, K)
        low, high = torch.maximum(found.low[left], new.low), torch.minimum(found.high[left], new.high)
        new = Bracket(low, high, new.value.clamp(low, high))
        for column, part in zip(found, new, strict=True):
            column[left] = part
        open_ = ~(new.error <= tolerance * new.value.clamp_min(floor)) & high.isfinite()
        if K == LAST or not bool(open_.any()):
            break
        if not bool(open_.all()):
            left, work = left[open_], work.of(open_)
        K, steps = 2 * K, K
    return found


def _begin(A: Tensor, size: Tensor, scratch: Scratch) -> tuple[Work, Tensor]:
    """A^BASE for A of this size, and about how far rounding may have moved it, relative to its own size, (b,).

    Errors behave like random matrices in the next square. Where little is left of a square they count for more: of
    tokens that form trees nothing but rounding is left, and thin products would all agree on it.
    """
    eps, n = torch.finfo(A.dtype).eps, A.shape[-1]
    B, log, rounded = A, torch.zeros_like(size), torch.zeros_like(size)
    before = size.clamp_min(TINY).log()
    for i in range(SQUARINGS):
        B, left = unit(torch.bmm(B, B, out=scratch.take(f"A^K {i % 2}", tuple(A.shape), A)))
        log = 2 * log + left
        rounded = (4 / math.sqrt(n) * rounded + 2 * eps) / (left - 2 * before).exp()
        before = torch.zeros_like(before)
    return Work(B, log, _random(n, A).expand(len(A), -1, -1), torch.zeros_like(log)), rounded


def _times(X: Tensor, log: Tensor, work: Work, B: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """X A^steps of size one, and the logarithm of its size; B stands for A^BASE, or its transpose."""
    for _ in range(steps // BASE):
        X, size = unit(torch.bmm(X, B))
        log = log + size + work.log_B
    return X, log


def _further(work: Work, steps: int) -> Work:
    """So many more factors of A in what becomes of the random vectors."""
    Y, log = _times(work.Y, work.log_Y, work, work.B, steps)
    return work._replace(Y=Y, log_Y=log)


def _of_power(work: Work, K: int) -> Bracket:
    """What A^K tells."""
    n = work.B.shape[-1]
    Y = work.Y[:, :THIN]
    Y = torch.where(Y.isfinite().all(-1, keepdim=True), Y, 0.0)  # LAPACK refuses the others
    Q = torch.linalg.qr(Y.mT).Q.mT.contiguous()
    W, log = _times(Q, torch.zeros_like(work.log_B), work, work.B.mT, K)  # Q (A^K)^T
    G = _random(n, work.B)[THIN:]
    missed = work.Y[:, THIN:] * (work.log_Y - log).exp()[:, None, None] - ((G @ W.mT) @ Q).double()  # g E
    e = torch.linalg.vector_norm(missed, dim=(-2, -1)) / math.sqrt(LEAST)
    found = _of_thin(Q.double() @ W.double().mT, e, log / K, K, n)
    wild = (log / K).exp() > WILD * found.value
    return Bracket(torch.where(wild, 0.0, found.low), torch.where(wild, torch.inf, found.high), found.value)


def _of_thin(M: Tensor, e: Tensor, log: Tensor, K: int, n: int) -> Bracket:
    """A bracket of rho(A) from A^K = exp(K log) (W^T Q + E), M = Q W^T, |W|_F = 1, |E|_F <= e."""
    w = M.shape[-1]
    powers = torch.cat((torch.eye(w, dtype=M.dtype, device=M.device).expand_as(M), M), -2)  # M^(j-1) above M^j
    sizes, errors, traces = [torch.ones_like(e)], [e], [_trace(M)]
    for _ in range(BOUNDED):
        powers = torch.bmm(powers, powers[:, w:])
        size = torch.linalg.vector_norm(powers[:, :w], dim=(-2, -1)).clamp_min(TINY)
        powers.mul_((1 / size)[:, None, None])
        sizes.append(size)
        errors.append((2 + errors[-1]) * errors[-1] / size)
        traces.append(_trace(powers[:, w:]))
    k = K << torch.arange(BOUNDED + 1, device=M.device)[:, None]
    logs, e = log + (torch.stack(sizes).log() / k).cumsum(0), torch.stack(errors)
    high = (logs + e.log1p() / k).exp().nan_to_num(math.inf).amin(0)
    low = by_trace(torch.stack(traces), e, n, logs, k).nan_to_num(0.0).amax(0)
    return Bracket(low, high, (_growth(powers[:, w:]) / k[-1] + logs[-1]).exp().clamp(low, high))


def _growth(M: Tensor) -> Tensor:
    """log rho(M) for M (b, w, w): that of |M^2j| / |M^j| over j, in which all but the radius cancels."""
    found = []
    for i in range(FURTHER + 1):
        M, size = unit(torch.bmm(M, M) if i else M.clone())
        found.append(size / 2**i)
    return torch.stack(found).sum(0) + found[-1]


def _trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)


def _random(n: int, like: Tensor) -> Tensor:
    """The vectors that begin: of the range of A^K, and those that E is measured on."""
    return torch.randn(THIN + PROBES, n, generator=torch.Generator().manual_seed(2)).to(like)
