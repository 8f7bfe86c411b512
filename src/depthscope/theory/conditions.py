"""Whether the theorem behind the bound applies (Yu & Zhang 2023, Theorem 2.6, appendix A.3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain
from depthscope.theory.rate import WHY, count, ratio_lower_bound, ratio_of

_ROUNDING = 1e-12  # of the ratio: uniform attention has E[eta] = Delta = 0, which rounding must not turn into a failure


@dataclass(frozen=True)
class Preconditions:
    """Where the conditions of Theorem 2.6 hold, by how much, and in words why not; the words are empty if all hold.

    Examples:
        >>> found = ds.theory.preconditions(0.2, 0.3)
        >>> found.holds, round(float(found.slack), 3), found.reasons
        (True, 0.5, [])
    """

    holds: Result  # bool
    slack: Result
    reasons: list[str]


def preconditions(
    omega: Number,
    delta: Number,
    *,
    mu_1: Number | None = None,
    mu_2: Number | None = None,
    alpha: Number = 1.0,
    eta: Number | None = None,
) -> Preconditions:
    """Whether Theorem 2.6 applies, so that rate_lower_bound bounds the expected rate.

    omega + delta < 1    and, when mu_1, mu_2 and eta = E[eta] are given,    E[eta] <= Delta,
    Delta = (1 + alpha^2 mu_1^2) / (1 + alpha^2 mu_2^2) - (1 + alpha^2 (1 - omega)^2) / (1 + alpha^2 delta^2) >= 0

    All (...) -> holds and slack (...); slack is 1 - omega - delta, or Delta - E[eta] where that is less. The second
    condition is exactly what the proof needs of "(15) is bounded away from zero for d sufficiently large"; without it
    the answer covers the limit of large d only. Yu & Zhang 2023, Theorem 2.6, appendix A.3.

    Examples:
        >>> found = ds.theory.preconditions(0.8, 0.4)  # omega + delta is above 1
        >>> found.holds, len(found.reasons)
        (False, 1)
    """
    where = "preconditions"
    omega, delta, alpha = checked(where, omega=omega, delta=delta, alpha=alpha)
    (total,) = as_tensors(omega + delta)
    holds, slack = total < 1, 1 - total
    reasons = []
    if bool((total >= 1).any()):
        reasons.append(f"omega + delta < 1 does not hold: {count(total >= 1, total)}; {WHY}.")
    if bool(total.isnan().any()):
        reasons.append(f"omega + delta is not a number in {int(total.isnan().sum())} of {total.numel()} cases.")
    (own,) = as_tensors(delta)
    if bool((own >= 1).any()):
        reasons.append(
            f"delta < 1 does not hold: {count(own >= 1, own)}; under a causal mask the first tokens are seen by all "
            "and see few, so some difference between tokens leaves attention larger than it came."
        )
    if mu_1 is None and mu_2 is None and eta is None:
        return Preconditions(_plain_bool(holds, omega, delta), plain(slack, omega, delta), reasons)
    if mu_1 is None or mu_2 is None or eta is None:
        raise UsageError(
            f"{where}: mu_1, mu_2 and eta must come together; got only some of them. Give all three, or none."
        )
    mu_1, mu_2, eta = checked(where, mu_1=mu_1, mu_2=mu_2, eta=eta)
    ratio = ratio_of(mu_1, mu_2, alpha**2)
    Delta = ratio - ratio_lower_bound(omega, delta, alpha=alpha)
    holds, slack, room, tolerance = as_tensors(holds, slack, Delta - eta, _ROUNDING * ratio)
    small = room < -tolerance
    if bool(small.any()):
        reasons.append(
            f"E[eta] <= Delta does not hold: {int(small.sum())} of {small.numel()}, missed by "
            f"{float(-room[small].min()):.3g} at worst; the width d is too small for the theorem."
        )
    given = (omega, delta, mu_1, mu_2, alpha, eta)
    return Preconditions(
        _plain_bool(holds.bool() & (room >= -tolerance), *given), plain(torch.minimum(slack, room), *given), reasons
    )


def _plain_bool(holds: Tensor, *inputs: Number) -> Result:
    return holds if any(isinstance(v, Tensor) for v in inputs) else bool(holds)
