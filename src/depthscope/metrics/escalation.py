"""How one step X -> Y changes the likeness of tokens (Yu & Zhang 2023, section 2.2)."""

import math

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_pair
from depthscope.metrics.chunk import Energies
from depthscope.metrics.chunks import energies, power_of_two
from depthscope.metrics.mixing import mu
from depthscope.registry import metric

_INVARIANT = ("token order", "scale", "rotation", "padding")


def _xi(X: Energies, Y: Energies) -> tuple[Tensor, Tensor]:
    return Y.common / X.common, Y.centred / X.centred


def _rate(X: Energies, Y: Energies) -> Tensor:
    return (X.centred / X.total) / (Y.centred / Y.total)


def _both(X: Tensor, Y: Tensor, mask: Tensor | None, where: str) -> tuple[Energies, Energies]:
    check_pair(X, Y, where=where)
    X, Y = (Z if Z.dtype in (torch.float32, torch.float64) else Z.float() for Z in (X, Y))
    tokens = X.detach()
    if mask is not None:
        tokens = tokens.masked_fill(~check_mask(mask, X.shape[:-1], where=where)[..., None], 0.0)
    scale = power_of_two(tokens.reshape(-1, *X.shape[-2:]))
    if scale is not None:
        X, Y = (Z / scale.reshape(*X.shape[:-2], 1, 1) for Z in (X, Y))
    return energies(X, mask, where=where), energies(Y, mask, where=where)


@metric("step", takes=("X", "Y"), parts=("xi_1", "xi_2"), bounds=(0, math.inf), invariant=_INVARIANT, formula=_xi)
def xi(X: Tensor, Y: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Growth of the common part and of the centred part in one step.

    xi_i(X, Y) = |Pi_i Y|_F^2 / |Pi_i X|_F^2,    i = 1, 2

    X, Y (..., n, d) -> two tensors (...), >= 0. xi_1 / xi_2 multiplies the odds t_sim / t_div: tokens grow
    alike when it is above 1. Infinite or NaN when that part of X is zero. Yu & Zhang 2023, eq. (7).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> Y = X + X.mean(0)  # more of the mean token
        >>> tuple(round(float(value), 3) for value in ds.metrics.xi(X, Y))
        (4.0, 1.0)
    """
    return _xi(*_both(X, Y, mask, "xi"))


@metric("step", takes=("X", "Y"), bounds=(0, math.inf), invariant=_INVARIANT, formula=_rate)
def escalation_rate(X: Tensor, Y: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """By how much one step divides token diversity; above 1 the tokens grow alike.

    r(X, Y) = t_div(X) / t_div(Y) = 1 + (xi_1 / xi_2 - 1) t_sim(X)

    X, Y (..., n, d) -> (...), >= 0; NaN when both are exactly collapsed. Yu & Zhang 2023, eq. (5), (6).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> Y = X + X.mean(0)  # more of the mean token
        >>> round(float(ds.metrics.escalation_rate(X, Y)), 3)
        3.25
    """
    return _rate(*_both(X, Y, mask, "escalation_rate"))


@metric(
    "step", takes=("X", "Y", "P"), bounds=(-math.inf, math.inf), invariant=("token order", "padding"), default=False
)
def eta(
    X: Tensor, Y: Tensor, P: Tensor, *, alpha: float = 1.0, sigma: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """How far one draw of the weights is from the expected ratio of growth.

    eta = E[xi_1] / E[xi_2] - xi_1 / xi_2,    E[xi_i] = 1 + alpha^2 d sigma^2 mu_i^2

    X, Y (..., n, d), Y = X + alpha P X W with W of mean 0 and variance sigma^2 (1/d when None);
    P (..., n, n) -> (...). With heads, P (..., h, n, n): mu_i^2 is the mean over heads (Proposition 2.9).
    Yu & Zhang 2023, eq. (9), (14).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> Y = X + X.mean(0)  # more of the mean token
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> round(float(ds.metrics.eta(X, Y, P)), 3)
        -1.966
    """
    xi_1, xi_2 = xi(X, Y, mask=mask)
    gain = alpha**2 * (1.0 if sigma is None else X.shape[-1] * sigma**2)
    squares = [m.square() for m in mu(X, P, mask=mask)]
    if P.ndim == X.ndim + 1:
        squares = [s.mean(-1) for s in squares]
    E_xi_1, E_xi_2 = (1 + gain * s for s in squares)
    return E_xi_1 / E_xi_2 - torch.as_tensor(xi_1 / xi_2)
