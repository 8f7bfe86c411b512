"""Expected escalation rate of one attention step, its bound and its estimate (Yu & Zhang 2023, section 2.2.2)."""

import warnings

import torch
from torch import Tensor

from depthscope.errors import TheoryWarning
from depthscope.theory.numbers import Number, Result, as_tensors, branch_gain, checked, plain

WHY = "causal attention and very uneven attention do this: some tokens receive far more of it than others"


def expected_rate(
    t_sim: Number,
    mu_1: Number,
    mu_2: Number,
    *,
    alpha: Number = 1.0,
    d: Number | None = None,
    sigma: Number | None = None,
    eta: Number = 0.0,
) -> Result:
    """By how much one attention step divides token diversity, in expectation over its weights.

    E[r] = 1 + (E[xi_1] / E[xi_2] - 1 - E[eta]) t_sim,    E[xi_i] = 1 + alpha^2 d sigma^2 mu_i^2

    t_sim, mu_1, mu_2 (...) of the input -> (...); above 1 the tokens grow alike. Exact when eta is E[eta], as
    expected_eta gives it for Gaussian weights; eta = 0 is the limit of large d. W (d, d) independent, mean 0,
    variance sigma^2; d sigma^2 = 1 when both are left out. With heads mu_i is mu_bar. Yu & Zhang 2023, eq. (13), (18).

    Examples:
        >>> round(ds.theory.expected_rate(t_sim=0.5, mu_1=1.0, mu_2=0.1), 3)
        1.49
    """
    gain = branch_gain("expected_rate", alpha, d, sigma)
    t_sim, mu_1, mu_2, eta = checked("expected_rate", t_sim=t_sim, mu_1=mu_1, mu_2=mu_2, eta=eta)
    return _rate(t_sim, ratio_of(mu_1, mu_2, gain) - eta)


def ratio_lower_bound(omega: Number, delta: Number, *, alpha: Number = 1.0) -> Result:
    """Least ratio E[xi_1] / E[xi_2] that omega and delta allow. Minus 1 it is Estimate 1 of figure 3.

    E[xi_1] / E[xi_2] >= (1 + alpha^2 (1 - omega)^2) / (1 + alpha^2 delta^2)

    omega, delta (...) -> (...), > 0. Holds for every row-stochastic P, every width and every law of W with
    d sigma^2 = 1; it bounds E[xi_1 / xi_2] only where preconditions() hold. Yu & Zhang 2023, eq. (16), section 2.4.

    Examples:
        >>> round(float(ds.theory.ratio_lower_bound(0.1, 0.2)), 3)
        1.74
    """
    gain = branch_gain("ratio_lower_bound", alpha, None, None)
    omega, delta = checked("ratio_lower_bound", omega=omega, delta=delta)
    return ratio_of(1 - omega, delta, gain)


def ratio_estimate(lambda_2: Number, *, alpha: Number = 1.0) -> Result:
    """Ratio xi_1 / xi_2 guessed from one eigenvalue of P. Minus 1 it is Estimate 2 of figure 3.

    xi_1 / xi_2 ~ (1 + alpha^2) / (1 + alpha^2 lambda_2^2)

    lambda_2 (...) -> (...), in [1, 1 + alpha^2]. A lower bound of E[xi_1] / E[xi_2] for symmetric P and
    d sigma^2 = 1; for other P an estimate with no guarantee. Yu & Zhang 2023, eq. (17), section 2.4.

    Examples:
        >>> round(float(ds.theory.ratio_estimate(0.2)), 3)
        1.923
    """
    gain = branch_gain("ratio_estimate", alpha, None, None)
    (lambda_2,) = checked("ratio_estimate", lambda_2=lambda_2)
    return ratio_of(1.0, lambda_2, gain)


def rate_estimate(t_sim: Number, lambda_2: Number, *, alpha: Number = 1.0) -> Result:
    """Expected escalation rate guessed from one eigenvalue of P.

    E[r] ~ 1 + alpha^2 (1 - lambda_2^2) / (1 + alpha^2 lambda_2^2) t_sim

    t_sim, lambda_2 (...) -> (...), >= 1. Guaranteed, as a lower bound, only for symmetric P under the conditions of
    Theorem 2.6; often nearer to the truth than rate_lower_bound. Yu & Zhang 2023, eq. (17), there with alpha = 1.

    Examples:
        >>> round(float(ds.theory.rate_estimate(t_sim=0.5, lambda_2=0.1)), 3)
        1.49
    """
    t_sim, lambda_2, alpha = checked("rate_estimate", t_sim=t_sim, lambda_2=lambda_2, alpha=alpha)
    return _rate(t_sim, ratio_estimate(lambda_2, alpha=alpha))


def rate_lower_bound(t_sim: Number, omega: Number, delta: Number, *, alpha: Number = 1.0) -> Result:
    """Least expected escalation rate that omega and delta allow.

    E[r] >= 1 + alpha^2 ((1 - omega)^2 - delta^2) / (1 + alpha^2 delta^2) t_sim

    t_sim, omega, delta (...) -> (...), > 1; NaN, with a TheoryWarning, where omega + delta < 1 does not hold. W is
    independent with mean 0 and variance 1/d, and d is so large that E[eta] <= Delta: preconditions() tells.
    With heads the same bound is expected_rate(t_sim, *mu_bar(mu_bounds(omega, delta))). Yu & Zhang 2023, Theorem 2.6.

    Examples:
        >>> round(float(ds.theory.rate_lower_bound(t_sim=0.5, omega=0.1, delta=0.2)), 3)
        1.37
    """
    return _bound("rate_lower_bound", t_sim, omega, delta, alpha)


def doubly_stochastic_bound(t_sim: Number, delta: Number, *, alpha: Number = 1.0) -> Result:
    """Least expected escalation rate when the columns of P sum to 1 as well as its rows.

    E[r] >= 1 + alpha^2 (1 - delta^2) / (1 + alpha^2 delta^2) t_sim

    t_sim, delta (...) -> (...), > 1; NaN, with a TheoryWarning, where delta < 1 does not hold. Conditions as for
    rate_lower_bound, with omega = 0. Yu & Zhang 2023, Corollary 2.7, there with alpha = 1.

    Examples:
        >>> round(float(ds.theory.doubly_stochastic_bound(0.5, 0.2)), 3)
        1.462
    """
    return _bound("doubly_stochastic_bound", t_sim, 0.0, delta, alpha)


def ratio_of(mu_1: Number, mu_2: Number, gain: Number) -> Result:
    """E[xi_1] / E[xi_2] where gain = alpha^2 d sigma^2."""
    return (1 + gain * mu_1**2) / (1 + gain * mu_2**2)


def _rate(t_sim: Number, ratio: Number) -> Result:
    return 1 + (ratio - 1) * t_sim


def _bound(where: str, t_sim: Number, omega: Number, delta: Number, alpha: Number) -> Result:
    t_sim, omega, delta, alpha = checked(where, t_sim=t_sim, omega=omega, delta=delta, alpha=alpha)
    rate = _rate(t_sim, ratio_lower_bound(omega, delta, alpha=alpha))
    total, value = as_tensors(omega + delta, rate)
    fails = total >= 1
    if bool(fails.any()):
        warnings.warn(
            f"{where}: omega + delta < 1 must hold for the bound; got {count(fails, total)}, and the bound is NaN "
            f"there. Use expected_rate instead: {WHY}.",
            TheoryWarning,
            stacklevel=3,
        )
    return plain(torch.where(fails, torch.nan, value), t_sim, omega, delta, alpha)


def count(fails: Tensor, value: Tensor) -> str:
    """How many values fail, and the worst, in words."""
    return f"{int(fails.sum())} of {fails.numel()} at 1 or above, {float(value[fails].max()):.3g} at worst"
