"""The largest rate at which a design trains, from what one step of Adam does to its output."""

import math
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from depthscope.forecasts.by_sizes import Change, of_design
from depthscope.forecasts.numbers import growth_of_design, numbers_of_design
from depthscope.forecasts.record import Forecast
from depthscope.models.design import Design
from depthscope.theory.updates import Branches, updates_by_depth

LEARNT = ("layer_scale", "rezero", "skip_init")
C, DIVERSITY = 0.3, 0.25  # not fitted yet


@dataclass(frozen=True)
class RateLimit:
    """What decides on the rate. update: relative change of the output by one step at rate 1, all blocks together;
    local: the same if the rest of the stack passed a change on as it is. growth: of gradients over the stack.
    diversity: t_div at the end."""

    update: float
    local: float
    growth: float
    diversity: float

    @property
    def largest_rate(self) -> float:
        """eta_max = c t_div^b / update"""
        return C * max(self.diversity, 1e-12) ** DIVERSITY / self.update


def rate_limit(
    design: Design,
    n: int,
    *,
    t_sim: float | None = None,
    tau: float = 0.0,
    site: str = "block_out",
    scores: float = 1.0,
    curve: Forecast | None = None,
) -> RateLimit:
    """sum_l r_l G_l: r_l the relative change of the stream in block l for rate 1, G_l what the blocks above make of it.

    A random change grows on its way up as random gradients grow on their way down (|J| is that of its transpose), so
    that G_l is the product of gradient growths above l, over the growth of the stream itself.
    """
    start = 1 / n if t_sim is None else t_sim
    numbers = numbers_of_design(design)
    numbers["score_variance"] *= scores**2
    sizes = Branches(design.d, design.ffn_width, design.h, design.wiring in LEARNT)
    stack = {"n": n, "tau": tau, "site": site, **numbers}
    r, energies = updates_by_depth(depth=design.depth, t_sim=start, sizes=sizes, **stack)
    growth = growth_of_design(design, n, t_sim=start, tau=tau, scores=scores)
    above = [1.0] * design.depth
    if growth is not None:
        grown = [*accumulate(reversed(growth[1:].tolist()), mul, initial=1.0)][::-1]
        above = [g * math.sqrt(e / energies[-1]) for g, e in zip(grown, energies[1:], strict=True)]
    curve = curve or of_design(None, n, t_sim, Change(tau, site, scores), vars(design))
    total = 1.0 if growth is None else math.exp(float(growth.log().sum()))
    return RateLimit(sum(map(mul, r, above)), sum(r), total, float(curve.t_div[-1]))
