"""What one gain per block comes to over depth, in odds t_sim / t_div (from Yu & Zhang 2023, eq. (6), Remark 2.8)."""

import math

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.numbers import Number, Result, as_tensors, branch_gain, checked, plain


def odds(t_sim: Number) -> Result:
    """Common energy for one unit of centred energy; one step multiplies it by xi_1 / xi_2.

    odds = t_sim / (1 - t_sim)

    t_sim (...) -> (...), in [0, inf]; infinite for collapsed tokens. Eq. (6) of Yu & Zhang 2023, written for odds.

    Examples:
        >>> round(float(ds.theory.odds(0.8)), 3)
        4.0
    """
    (t_sim,) = checked("odds", t_sim=t_sim)
    (t,) = as_tensors(t_sim)
    return plain(t / (1 - t), t_sim)


def similarity_after(t_sim: Number, *, gain: Number, depth: Number) -> Result:
    """Token similarity after so many blocks that each multiply the odds by the same gain.

    odds(t_L) = gain^depth odds(t_0)

    t_sim, gain, depth (...) -> (...), in [0, 1]; depth = torch.arange(41) draws a curve. Exact when every block has
    xi_1 / xi_2 = gain; NaN for collapsed tokens that a gain of 0 removes whole.

    Examples:
        >>> round(float(ds.theory.similarity_after(0.1, gain=2.0, depth=5)), 3)
        0.78
    """
    t_sim, gain, depth = checked("similarity_after", t_sim=t_sim, gain=gain, depth=depth)
    t, g, L = as_tensors(t_sim, gain, depth)
    return plain(torch.sigmoid(torch.logit(t) + torch.xlogy(L, g)), t_sim, gain, depth)


def block_gain(
    *, alpha: Number = 1.0, d: Number | None = None, sigma: Number | None = None, tau: Number = 0.0
) -> Result:
    """What a block with uniform attention multiplies the odds by, when de-escalation of strength tau ends it.

    gain = (1 + alpha^2 d sigma^2) (1 - tau)^2

    numbers or (...) -> the same, >= 0; above 1 the tokens collapse with depth. Assumes P = 1 1^T / n, where
    xi_2 = 1 and E[xi_1] = 1 + alpha^2 d sigma^2, the end of every collapse; d sigma^2 = 1 when both are left out.
    FFN and LayerNorm are taken as neutral. Yu & Zhang 2023, Remark 2.8, eq. (21).

    Examples:
        >>> ds.theory.block_gain(alpha=1.0, tau=0.5)
        0.5
    """
    gain = branch_gain("block_gain", alpha, d, sigma)
    (tau,) = checked("block_gain", tau=tau)
    return (1 + gain) * (1 - tau) ** 2


def limit_factor(alpha: Number = 1.0, *, d: Number | None = None, sigma: Number | None = None) -> Result:
    """What each block leaves of token diversity in the end.

    t_div(Y) / t_div(X) -> 1 / (1 + alpha^2 d sigma^2)

    numbers or (...) -> the same, in (0, 1]; 1/2 for the paper's setting. Uniform attention, as for block_gain, and
    t_sim near 1. Yu & Zhang 2023, Remark 2.8.

    Examples:
        >>> ds.theory.limit_factor(alpha=1.0)
        0.5
    """
    return 1 / (1 + branch_gain("limit_factor", alpha, d, sigma))


def collapse_depth(
    t_sim: Number, *, gain: Number | None = None, alpha: Number = 1.0, tau: Number = 0.0, threshold: Number = 0.99
) -> Result:
    """After how many blocks token similarity passes a threshold.

    depth = (logit(threshold) - logit(t_sim)) / log(gain)

    t_sim, gain (...) -> (...), a real number of blocks: 0 when it is there already, inf when gain <= 1. gain is
    xi_1 / xi_2 of a whole block, the same in all; left out it is block_gain(alpha=alpha, tau=tau). Random tokens
    start at t_sim ~ 1/n.

    Examples:
        >>> round(ds.theory.collapse_depth(1 / 64, threshold=0.99), 1)
        12.6
    """
    t_sim, threshold = checked("collapse_depth", t_sim=t_sim, threshold=threshold)
    gain = _gain("collapse_depth", gain, alpha=alpha, tau=tau)
    t, g, goal = as_tensors(t_sim, gain, threshold)
    way = torch.logit(goal) - torch.logit(t)
    depth = torch.where(g > 1, way / g.log(), math.inf)
    return plain(torch.where(way <= 0, 0.0, depth), t_sim, gain, threshold)


def critical_tau(gain: Number | None = None, *, alpha: Number = 1.0) -> Result:
    """The least strength of de-escalation at which tokens do not collapse with depth.

    gain (1 - tau)^2 = 1,    tau = 1 - 1 / sqrt(gain)

    gain (...) -> (...), in [0, 1): 0 when gain <= 1. gain is xi_1 / xi_2 of a whole block without de-escalation;
    left out it is 1 + alpha^2, uniform attention. From Yu & Zhang 2023, eq. (6), (21).

    Examples:
        >>> round(ds.theory.critical_tau(alpha=1.0), 3)
        0.293
    """
    gain = _gain("critical_tau", gain, alpha=alpha)
    (g,) = as_tensors(gain)
    return plain(1 - g.clamp(min=1).rsqrt(), gain)


def _gain(where: str, gain: Number | None, **others: Number) -> Result:
    if gain is None:
        checked(where, **others)
        return block_gain(**others)
    given = [name for name, value in others.items() if isinstance(value, Tensor) or value != _DEFAULT[name]]
    if given:
        raise UsageError(
            f"{where}: gain must come without {' and '.join(given)}, which it replaces; got both. Leave one out."
        )
    return checked(where, gain=gain)[0]


_DEFAULT = {"alpha": 1.0, "tau": 0.0}
