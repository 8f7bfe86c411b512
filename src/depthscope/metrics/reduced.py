"""A smaller, better conditioned matrix with the eigenvalues of P: what zeros tell exactly, and a change of scale.

Tokens that nobody else looks at, or that look at nobody else, are peeled off: each leaves its P_ii as an eigenvalue.
Of a causal P in any order, and of trees of one-hot rows, nothing else is left. What remains is balanced.
"""

from typing import NamedTuple

import torch
from torch import Tensor

SWEEPS = 60  # of balancing
SQUARINGS = 12  # of P, for its stationary distribution


class Reduced(NamedTuple):
    """lambda_2(P) is the larger of `known` and the spectral radius of A + E, A (1, k, k), for some |E|_F <= error."""

    known: float
    A: Tensor
    error: Tensor


def reduced(P: Tensor, eps: float) -> Reduced:
    """One head P (n, n), rows that sum to 1, in float64; each entry is known to the relative error eps."""
    core, alone = _peeled(P != 0)
    own = sorted((P.diagonal()[alone]).tolist(), reverse=True)
    C = P[core][:, core]
    closed = len(C) > 0 and not bool((P[core][:, alone] != 0).any())
    if not closed:
        own = own[1:]  # the eigenvalue 1 is that of a token that looks at itself alone
    known = max(own, default=0.0)
    stationary = _stationary(C) if closed else torch.zeros_like(C[:1])
    A = C - stationary  # P - 1 w^T has 0 in the place of 1, for any w with w^T 1 = 1
    scale = _balancing(A)
    A, size = (M * scale / scale[:, None] for M in (A, C + stationary))
    return Reduced(known, A[None], 4 * len(C) ** 0.5 * eps * size.norm()[None])


def _peeled(sees: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that are left, and those that could be peeled off one by one; sees (n, n), bool."""
    others = (sees & ~torch.eye(len(sees), dtype=torch.bool, device=sees.device)).cpu()
    left = torch.ones(len(sees), dtype=torch.bool)
    while True:
        inner = others & left & left[:, None]
        gone = left & ~(inner.any(0) & inner.any(1))
        if not bool(gone.any()):
            return left.nonzero().squeeze(-1).to(sees.device), (~left).nonzero().squeeze(-1).to(sees.device)
        left = left & ~gone


def _stationary(P: Tensor) -> Tensor:
    """w (1, k) with w P = w, about: the mean row of a high power."""
    for _ in range(SQUARINGS):
        P = P @ P
        P = P / P.sum(-1, keepdim=True)
    w = P.mean(0, keepdim=True)
    return w / w.sum()


def _balancing(A: Tensor) -> Tensor:
    """Powers of two d (k,) for which the rows and columns of A_ij d_j / d_i are alike (Osborne 1960)."""
    size = A.abs() - A.abs().diagonal().diag()
    log = torch.zeros_like(size[:, 0]) if len(A) else size.sum(-1)
    for _ in range(SWEEPS):
        d = log.exp2()
        scaled = size * d / d[:, None]
        rows, columns = scaled.sum(1), scaled.sum(0)
        both = (rows > 0) & (columns > 0)
        log = log + torch.where(both, (rows / columns).log2().nan_to_num(0.0).clamp(-8, 8) / 4, 0.0)
    return log.round().exp2()
