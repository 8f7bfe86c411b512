"""What is left of a state without its common part: other norms, another common part (Dong et al. 2021)."""

import math

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric

_INVARIANT = ("token order", "scale", "padding")


def _columns(chunk: Chunk) -> Tensor:
    return _largest_sum(chunk.Pi_2_x, -2) / _largest_sum(chunk.x, -2)


def _rows(chunk: Chunk) -> Tensor:
    return _largest_sum(chunk.Pi_2_x, -1) / _largest_sum(chunk.x, -1)


def _largest_sum(x: Tensor, axis: int) -> Tensor:
    return x.abs().sum(axis).amax(-1).double()


def _spectral(chunk: Chunk) -> Tensor:
    finite, out = _finite(chunk)
    out[finite] = _largest(chunk.Pi_2_x[finite].double()) / _largest(chunk.wide[finite])
    return out


def _largest(x: Tensor) -> Tensor:
    return torch.linalg.svdvals(x)[..., 0]


def _rank_one(chunk: Chunk) -> Tensor:
    finite, out = _finite(chunk)
    x = chunk.wide[finite]
    U, s, Vh = torch.linalg.svd(x, full_matrices=False)
    out[finite] = _one_inf(x - s[:, :1, None] * U[:, :, :1] * Vh[:, :1, :]) / chunk.composite[finite]
    return out


def _one_inf(x: Tensor) -> Tensor:
    return (_largest_sum(x, -2) * _largest_sum(x, -1)).sqrt()


def _finite(chunk: Chunk) -> tuple[Tensor, Tensor]:
    """Which samples LAPACK accepts, (b,), and NaN for all of them."""
    return chunk.x.isfinite().all(-1).all(-1), torch.full_like(chunk.n, math.nan)


@metric("state", takes=("X",), bounds=(0, 2), invariant=_INVARIANT, formula=_columns, default=False)
def relative_residual_l1(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The relative residual by the largest column: of the channel in which tokens differ most.

    |res(X)|_1 / |X|_1,    res(X) = X - 1 x^T,  x the mean token,  |X|_1 = max column abs sum

    X (..., n, d) -> (...), in [0, 2); 0 when all tokens are equal. Dong et al. 2021, section 2.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.relative_residual_l1(X)), 3)
        0.667
    """
    return by_sample(_columns, X, mask, where="relative_residual_l1")


@metric("state", takes=("X",), bounds=(0, 2), invariant=_INVARIANT, formula=_rows, default=False)
def relative_residual_linf(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The relative residual by the largest row: of the token that is farthest from the mean.

    |res(X)|_inf / |X|_inf,    res(X) = X - 1 x^T,  x the mean token,  |X|_inf = max row abs sum

    X (..., n, d) -> (...), in [0, 2); 0 when all tokens are equal. Dong et al. 2021, section 2.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.relative_residual_linf(X)), 3)
        0.333
    """
    return by_sample(_rows, X, mask, where="relative_residual_linf")


@metric(
    "state",
    takes=("X",),
    bounds=(0, 1),
    invariant=(*_INVARIANT, "rotation"),
    formula=_spectral,
    default=False,
)
def relative_residual_l2(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The relative residual by the strongest direction in which tokens differ.

    |res(X)|_2 / |X|_2,    res(X) = X - 1 x^T,  x the mean token,  |X|_2 = largest singular value

    X (..., n, d) -> (...), in [0, 1]; 0 when all tokens are equal. In this norm, as in Frobenius', no other x leaves
    less: |X - 1 x^T|_2 >= |Pi_2 (X - 1 x^T)|_2 = |Pi_2 X|_2. Dong et al. 2021, section 2.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.relative_residual_l2(X)), 3)
        0.528
    """
    return by_sample(_spectral, X, mask, where="relative_residual_l2")


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=_INVARIANT, formula=_rank_one, default=False)
def rank_one_residual(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """What is left of X without its strongest direction, relative to X: 0 when all tokens lie on one line.

    |X - s_1 u_1 v_1^T|_{1,inf} / |X|_{1,inf},    s_1 u_1 v_1^T = best rank-one approximation of X

    X (..., n, d) -> (...), >= 0. Tokens of one direction and different lengths are rank one, and not equal: this falls
    where relative_residual does not. Dong et al. 2021, the other residual of their plots.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.rank_one_residual(X)), 3)
        0.377
    """
    return by_sample(_rank_one, X, mask, where="rank_one_residual")
