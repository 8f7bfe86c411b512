"""Two numbers that the spectral radius of A = Pi_2 P lies between, from a thin product that stands for a power of A.

High powers have few directions left:   A^K = c (Q^T W + E),   Q, W (WIDTH, n).
E, with all rounding on the way to Q and W, is measured on random vectors: A^K g by K products with P, in the precision
of P. Powers of Q^T W cost next to nothing, (Q^T W)^j = Q^T M^(j-1) W with M = W Q^T, and bound the radius from both
sides as in bracket.py. What rounding could do at worst is ten thousand times what it does, and would bound nothing.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.bracket import Bracket, by_trace
from depthscope.metrics.krylov import MISSED, WIDTH

THIN = 24  # rows of Q and W
SQUARINGS = 2  # of the whole of A: fewer, wider steps to A^K
FIRST, LAST = 16, 64  # K, doubled for the heads that are not known well enough
DOUBLINGS = 12  # of powers of Q^T W
TINY = 1e-30


class Work(NamedTuple):
    """Heads on their way: A^4 of A = Pi_2 P / size, Y = G (A^K)^T, and A^K g of the probes with the log of its size."""

    P: Tensor
    keep: Tensor | None
    A_4: Tensor
    log_size: Tensor
    Y: Tensor
    log_probe: Tensor
    probe: Tensor

    def of(self, heads: Tensor) -> "Work":
        kept = {name: part[heads] for name, part in self._asdict().items() if part is not None}
        return self._replace(**kept)


def thin_bracket(P: Tensor, Pi_2_P: Tensor, mask: Tensor | None, *, tolerance: float, floor: float) -> Bracket:
    """A bracket of rho(Pi_2 P) for P (b, n, n), rows of padding zero, mask (b, n) or None.

    K is doubled where the error is above tolerance * max(value, floor). The bracket fails once in a million heads.
    """
    work = _begin(P, Pi_2_P, mask)
    high = work.log_size.exp() + torch.finfo(P.dtype).eps * torch.linalg.vector_norm(P, dim=(-2, -1)).double()
    found = Bracket(torch.zeros_like(high), high, torch.zeros_like(high))
    left = torch.arange(len(P), device=P.device)
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
        left, work = left[open_], work.of(open_)
        K, steps = 2 * K, K
    return found


def _begin(P: Tensor, Pi_2_P: Tensor, mask: Tensor | None) -> Work:
    b, n, _ = P.shape
    A, log_size = _unit(Pi_2_P)
    for _ in range(SQUARINGS):
        A = torch.bmm(A, A)
    G = _random(n, P)
    keep = None if mask is None else mask[:, None, :]
    start = torch.zeros_like(log_size)
    return Work(P, keep, A, log_size, G[:THIN].expand(b, THIN, n), start, G[THIN:].expand(b, WIDTH, n))


def _further(work: Work, steps: int) -> Work:
    """So many more factors of A in Y and in what becomes of the probes."""
    Y, Z, log = work.Y, work.probe, work.log_probe
    for _ in range(steps >> SQUARINGS):
        Y, _ = _unit(Y @ work.A_4.mT)
        for _ in range(1 << SQUARINGS):
            Z = _centre(Z @ work.P.mT, work.keep)
        Z, size = _unit(Z)
        log = log + size
    return work._replace(Y=Y, probe=Z, log_probe=log)


def _of_power(work: Work, K: int) -> Bracket:
    """What A^K tells."""
    n = work.P.shape[-1]
    Q = torch.linalg.qr(work.Y.mT).Q.mT.contiguous()
    W, log = Q, K * work.log_size
    for _ in range(K >> SQUARINGS):
        W, size = _unit(W @ work.A_4)
        log = log + size
    Q, W, G = Q.double(), W.double(), _random(n, work.P)[THIN:].double()
    missed = work.probe * (work.log_probe - log).exp()[:, None, None] - (G @ W.mT) @ Q  # E g
    e = torch.linalg.vector_norm(missed, dim=(-2, -1)) / math.sqrt(MISSED)
    return _of_thin(W @ Q.mT, e, log / K, K, n)


def _of_thin(M: Tensor, e: Tensor, log: Tensor, K: int, n: int) -> Bracket:
    """A bracket of rho(A) from A^K = exp(K log) (Q^T W + E), M = W Q^T, |W|_F = 1, |E|_F <= e."""
    w = M.shape[-1]
    powers = torch.cat((torch.eye(w, dtype=M.dtype, device=M.device).expand_as(M), M), -2)  # M^(j-1) above M^j
    logs, errors, traces = [log], [e], [_trace(M)]
    for i in range(1, DOUBLINGS + 1):
        powers = powers @ powers[:, w:]
        size = torch.linalg.vector_norm(powers[:, :w], dim=(-2, -1)).clamp_min(TINY)
        powers = powers / size[:, None, None]
        logs.append(logs[-1] + size.log() / (K << i))
        errors.append((2 + errors[-1]) * errors[-1] / size)
        traces.append(_trace(powers[:, w:]))
    log, e = torch.stack(logs), torch.stack(errors)
    k = K << torch.arange(DOUBLINGS + 1, device=M.device)[:, None]
    high = (log + e.log1p() / k).exp().nan_to_num(math.inf).amin(0)
    low = by_trace(torch.stack(traces), e, n, log, k).nan_to_num(0.0).amax(0)
    return Bracket(low, high, (2 * logs[-1] - logs[-2]).exp().clamp(low, high))


def _trace(M: Tensor) -> Tensor:
    return M.diagonal(dim1=-2, dim2=-1).sum(-1)


def _random(n: int, like: Tensor) -> Tensor:
    """The vectors that begin: of the range of A^K, and those that E is measured on."""
    return torch.randn(THIN + WIDTH, n, generator=torch.Generator().manual_seed(2)).to(like)


def _unit(X: Tensor) -> tuple[Tensor, Tensor]:
    """X (b, r, n) of size one, and the logarithm of its size, (b,), float64."""
    size = torch.linalg.vector_norm(X, dim=(-2, -1), keepdim=True).clamp_min(TINY)
    return X / size, size.flatten().double().log()


def _centre(U: Tensor, keep: Tensor | None) -> Tensor:
    """Pi_2 u for rows u of U that are zero on padding."""
    if keep is None:
        return U - U.mean(-1, keepdim=True)
    return torch.where(keep, U - U.sum(-1, keepdim=True) / keep.sum(-1, keepdim=True), 0.0)
