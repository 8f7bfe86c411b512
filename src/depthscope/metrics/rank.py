"""How many directions the tokens of one state really use."""

import math

import torch
from torch import Tensor

from depthscope._registry import metric
from depthscope.metrics._chunks import by_sample

_INVARIANT = ("token order", "scale", "rotation", "padding")


def _entropy_rank(x: Tensor) -> Tensor:
    singular = torch.linalg.svdvals(x)
    p = singular / singular.sum(-1, keepdim=True)
    return torch.special.entr(p).sum(-1).exp()


def _largest_squared(x: Tensor) -> Tensor:
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    return torch.linalg.eigvalsh(gram)[..., -1]


def _finite_only(f, x: Tensor) -> Tensor:
    """f on the finite samples and NaN on the others: LAPACK refuses a NaN for the whole batch."""
    finite = x.isfinite().all(-1).all(-1)
    out = torch.full((len(x),), math.nan, dtype=x.dtype, device=x.device)
    if bool(finite.any()):
        out[finite] = f(x[finite])
    return out


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, default=False)
def stable_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Energy of X in units of its strongest direction: 1 when all tokens lie on one line.

    stable_rank(X) = |X|_F^2 / |X|_2^2

    X (..., n, d) -> (...), in [1, min(n, d)].
    """
    return by_sample(
        lambda x, _: _finite_only(lambda y: y.square().sum((-2, -1)) / _largest_squared(y), x),
        X,
        mask,
        where="stable_rank",
    )


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, default=False)
def effective_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How many directions carry X, counted by the entropy of its singular values.

    effective_rank(X) = exp(-sum_k p_k log p_k),    p_k = s_k / sum_j s_j

    X (..., n, d) -> (...), in [1, min(n, d)]. Roy & Vetterli 2007.
    """
    return by_sample(lambda x, _: _finite_only(_entropy_rank, x), X, mask, where="effective_rank")
