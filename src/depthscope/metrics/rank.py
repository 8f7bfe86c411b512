"""How many directions the tokens of one state really use."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric

_INVARIANT = ("token order", "scale", "rotation", "padding")


def _by_singular_values(formula: Callable[[Tensor], Tensor], chunk: Chunk) -> Tensor:
    """A formula on the singular values (b, min(n, d)); NaN for a sample that LAPACK would refuse."""
    finite = chunk.x.isfinite().all(-1).all(-1)
    out = torch.full_like(chunk.n, math.nan)
    out[finite] = formula(torch.linalg.svdvals(chunk.wide[finite]))
    return out


def _stable(chunk: Chunk) -> Tensor:
    return _by_singular_values(lambda s: s.square().sum(-1) / s[..., 0].square(), chunk)


def _entropic(chunk: Chunk) -> Tensor:
    return _by_singular_values(lambda s: torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp(), chunk)


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, formula=_stable, default=False)
def stable_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Energy of X in units of its strongest direction: 1 when all tokens lie on one line.

    stable_rank(X) = |X|_F^2 / |X|_2^2

    X (..., n, d) -> (...), in [1, min(n, d)].

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.stable_rank(X)), 3)
        1.117
    """
    return by_sample(_stable, X, mask, where="stable_rank")


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, formula=_entropic, default=False)
def effective_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How many directions carry X, counted by the entropy of its singular values.

    effective_rank(X) = exp(-sum_k p_k log p_k),    p_k = s_k / sum_j s_j

    X (..., n, d) -> (...), in [1, min(n, d)]. Roy & Vetterli 2007.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.effective_rank(X)), 3)
        1.764
    """
    return by_sample(_entropic, X, mask, where="effective_rank")
