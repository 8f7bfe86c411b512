"""How far one step X -> Y turns each token: block influence, and the angle between two states."""

import math

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_pair
from depthscope.registry import metric

_INVARIANT = ("token order", "scale", "scale of each token", "rotation", "padding")


def cosines(X: Tensor, Y: Tensor) -> Tensor:
    """cos(x_i, y_i) of tokens (..., d) -> (...), float64, in [-1, 1]. Two zero tokens are one direction."""
    x, y = units_of(X), units_of(Y)
    alike = 1 - (x - y).square().sum(-1) / 2  # as precise for near tokens as for others
    both_zero = (x == 0).all(-1) & (y == 0).all(-1)
    return torch.where((x == 0).all(-1) ^ (y == 0).all(-1), 0.0, alike).masked_fill(both_zero, 1.0).clamp(-1, 1)


def angles(X: Tensor, Y: Tensor) -> Tensor:
    """arccos(cos(x_i, y_i)) / pi, in [0, 1], float64; by the half angle, which near tokens do not blur."""
    return 2 / math.pi * torch.asin((units_of(X) - units_of(Y)).norm(dim=-1).div(2).clamp(max=1.0))


def units_of(X: Tensor) -> Tensor:
    """The directions of tokens (..., d), float64; zero where a token is."""
    wide = X.detach().double()
    largest = wide.abs().amax(-1, keepdim=True)
    wide = wide / torch.where(largest > 0, largest, 1.0)  # squares of very small numbers are none
    size = wide.norm(dim=-1, keepdim=True)
    return wide / torch.where(size > 0, size, 1.0)


def _mean(values: Tensor, mask: Tensor | None, where: str) -> Tensor:
    if mask is None:
        return values.mean(-1)
    keep = check_mask(mask, values.shape, where=where)
    return values.masked_fill(~keep, 0.0).sum(-1) / keep.sum(-1)


@metric("step", takes=("X", "Y"), bounds=(0, 2), invariant=_INVARIANT, default=False)
def block_influence(X: Tensor, Y: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How far a block turns its tokens: 0 leaves every direction as it was.

    BI(X, Y) = 1 - mean_i cos(x_i, y_i)

    X, Y (..., n, d) -> (...), in [0, 2]. ShortGPT, Men et al. 2024.

    Examples:
        >>> X, Y = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # the second token turns by a right angle
        >>> round(float(ds.metrics.block_influence(X, Y)), 3)
        0.5
    """
    check_pair(X, Y, where="block_influence")
    return _mean(1 - cosines(X, Y), mask, "block_influence")


@metric("step", takes=("X", "Y"), bounds=(0, 1), invariant=_INVARIANT, default=False)
def angular_distance(X: Tensor, Y: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The mean angle between a token before and after, as a part of a half turn.

    d(X, Y) = mean_i arccos(cos(x_i, y_i)) / pi

    X, Y (..., n, d) -> (...), in [0, 1]. Gromov et al. 2024 take the last token alone; here all of them count.

    Examples:
        >>> X, Y = torch.eye(2), torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # the second token turns by a right angle
        >>> round(float(ds.metrics.angular_distance(X, Y)), 3)
        0.25
    """
    check_pair(X, Y, where="angular_distance")
    return _mean(angles(X, Y), mask, "angular_distance")
