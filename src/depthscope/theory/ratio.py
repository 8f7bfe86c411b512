"""The exact expected ratio xi_1 / xi_2 for Gaussian weights, at any width (beyond Yu & Zhang 2023, eq. (8), (14))."""

import math

import torch
from torch import Tensor

from depthscope.theory._gaussian import Draws, draws, integrand, tail
from depthscope.theory.numbers import Number, Result, branch_gain, checked

# With s = exp(u) the trapezoid rule errs by at most 2 exp(-2 pi v / STEP) / cos(v) of the result for any v < pi / 2,
# whatever X and P are: below 1e-14 here. LEFT drops exp(LEFT) of it.
STEP = 0.25
LEFT = -40.0
RIGHT = 64.0  # past the turn, where the integrand falls like exp(-u / 2) or faster
_NODES = 32  # taken at a time


def expected_ratio(X: Tensor, P: Tensor, *, alpha: Number = 1.0, sigma: Number | None = None) -> Tensor:
    """Expected ratio of the two growths, exact for Gaussian weights and any width.

    E[xi_1 / xi_2] = |Pi_2 X|_F^2 / |Pi_1 X|_F^2 * integral over s > 0 of E[N exp(-s D)] ds,
    N = |Pi_1 Y|_F^2,  D = |Pi_2 Y|_F^2,  Y = X + alpha [P_1 X W_1 ... P_h X W_h],  W_k (d, d/h) iid N(0, sigma^2)

    X (..., n, d), P row-stochastic (..., n, n) or (..., h, n, n), alpha and sigma (...) -> (...), > 0; sigma is
    1 / sqrt(d) when None. Infinite where D can come so near 0 that the mean does not exist: at most two random
    directions reach D, as for n = 2 tokens of width 1 or 2. The quantity of Yu & Zhang 2023, eq. (8).

    Examples:
        >>> X, P = torch.eye(4), torch.full((4, 4), 0.25)  # 4 tokens of width 4, uniform attention
        >>> round(ds.theory.expected_ratio(X, P).item(), 3)
        2.0
    """
    law = draws(X, P, alpha, sigma, where="expected_ratio")
    return _mean_ratio(law) * law.centred / law.common


def expected_eta(X: Tensor, P: Tensor, *, alpha: Number = 1.0, sigma: Number | None = None) -> Tensor:
    """How far the expected ratio stays behind the ratio of expectations, exact for Gaussian weights.

    E[eta] = E[xi_1] / E[xi_2] - E[xi_1 / xi_2]

    Arguments and assumptions as for expected_ratio -> (...), either sign; it goes to 0 as d grows. Below 0 the tokens
    grow alike faster than the limit of large d says. -inf where E[xi_1 / xi_2] is infinite. Yu & Zhang 2023, eq. (14).

    Examples:
        >>> X, P = torch.eye(4), 0.5 * torch.eye(4) + 0.125  # 4 tokens of width 4 that look at themselves most
        >>> round(ds.theory.expected_eta(X, P).item(), 3)
        -0.105
    """
    law = draws(X, P, alpha, sigma, where="expected_eta")
    return (law.E_N / law.E_D - _mean_ratio(law)) * law.centred / law.common


def concentration_gamma(
    mu_1: Number, mu_2: Number, *, alpha: Number = 1.0, d: Number | None = None, sigma: Number | None = None
) -> Result:
    """How much of a deviation of eta must show in xi_1 or xi_2.

    gamma = E[xi_2]^2 / (E[xi_1] + 2 E[xi_2])

    mu_1, mu_2 (...) -> (...), > 0. For t in [0, 1], |eta| >= t only if |xi_i - E[xi_i]| >= gamma t for i = 1 or 2;
    at least 1/4 when mu_1 = 1 and alpha^2 d sigma^2 = 1. With heads mu_i is mu_bar. Yu & Zhang 2023, eq. (23), (24).

    Examples:
        >>> round(float(ds.theory.concentration_gamma(1.0, 0.0)), 3)
        0.25
    """
    gain = branch_gain("concentration_gamma", alpha, d, sigma)
    mu_1, mu_2 = checked("concentration_gamma", mu_1=mu_1, mu_2=mu_2)
    E_xi_1, E_xi_2 = 1 + gain * mu_1**2, 1 + gain * mu_2**2
    return E_xi_2**2 / (E_xi_1 + 2 * E_xi_2)


def _mean_ratio(law: Draws) -> Tensor:
    """E[N / D] (...) by the trapezoid rule in u = log(s E[D]), upwards until nothing more comes."""
    turn, infinite = tail(law)
    total = torch.zeros_like(law.E_D)
    u = LEFT
    while u < turn + RIGHT:
        nodes = u + STEP * torch.arange(_NODES, dtype=torch.float64, device=total.device)
        terms = integrand(law, nodes) * STEP  # (..., _NODES)
        total = total + terms.sum(-1)
        u += _NODES * STEP
        if u > turn and bool(((terms[..., -1] <= 1e-18 * total) | infinite).all()):
            break
    return torch.where(infinite, math.inf, total)
