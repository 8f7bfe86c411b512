"""The largest rate at which a design trains, from what one step of Adam does to its output."""

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.numbers import growth_of_design, has_maps, numbers_of_design
from depthscope.models.design import Design
from depthscope.theory.updates import Branches, updates_by_depth

C, DIVERSITY, SLOPE = 0.3, 0.25, 2.0  # of eta_max and of the probability: not fitted yet
LEARNT = ("layer_scale", "rezero", "skip_init")  # wirings whose factor on a branch is a parameter


@dataclass(frozen=True)
class RateLimit:
    """What decides on the rate. depth: of the design. update: by how much one step at rate 1 changes the output,
    relative and to first order, all blocks together; local: the same if blocks passed a change on as it is.
    diversity: t_div after the last block.

    eta_max = c t_div^b / update,    P(trains at eta) = 1 / (1 + (eta / eta_max)^k)
    """

    depth: int
    update: float
    local: float
    diversity: float

    @property
    def largest_rate(self) -> float:
        return C * max(self.diversity, 1e-12) ** DIVERSITY / self.update

    def probability(self, lr: float) -> float:
        if not isinstance(lr, int | float) or isinstance(lr, bool) or not 0 < lr < math.inf:
            raise UsageError(f"trains: lr must be a positive learning rate; got {lr!r}. 1e-3 is a usual one.")
        return 1 / (1 + math.exp(min(SLOPE * math.log(lr / self.largest_rate), 700.0)))


def limit_of(
    design: Design, n: int, *, t_sim: float, tau: float, site: str, scores: float, diversity: float
) -> RateLimit | None:
    """sum_l r_l G_l: r_l the relative change of the stream in block l at rate 1, G_l what the blocks above make of it.

    A random change grows on its way up as random gradients grow on their way down, for a matrix and its transpose have
    one norm: G_l is the product of the gradient growths above l, over the growth of the stream. Where that growth is not
    known, G_l = 1; a causal mask counts for r_l and G_l as none. None where a design has no maps.
    """
    if not has_maps(design):
        return None
    numbers = numbers_of_design(design)
    numbers["score_variance"] *= scores**2
    sizes = Branches(design.d, design.ffn_width, design.wiring in LEARNT)
    stack = {"n": n, "tau": tau, "site": site, **numbers}
    r, energies = updates_by_depth(depth=design.depth, t_sim=t_sim, sizes=sizes, **stack)
    growth = growth_of_design(replace(design, causal=False), n, t_sim=t_sim, tau=tau, scores=scores)
    above = [1.0] * design.depth if growth is None else _above(growth, energies)
    return RateLimit(design.depth, sum(map(mul, r, above)), sum(r), diversity)


def _above(growth: Tensor, energies: list[float]) -> list[float]:
    """What the blocks above each make of a relative change."""
    grown = [*accumulate(reversed(growth[1:].tolist()), mul, initial=1.0)][::-1]
    return [g * math.sqrt(e / energies[-1]) for g, e in zip(grown, energies[1:], strict=True)]

