"""The largest rate at which a design trains, from what one step of Adam does to its output."""

import math
import sys
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.numbers import growth_of_design, has_maps, numbers_of_design
from depthscope.models.design import Design
from depthscope.theory.updates import Branches, updates_by_depth

# fitted to the first 120 designs of beyond/will_it_train
C, DIVERSITY, SLOPE = 12.7, 0.326, 2.38  # of eta_max and of the probability
MOVED = 0.0275  # how far entries must be able to move before anything is learned, rate times steps
CAUSAL = 2.35  # a causal model bears a rate so many times smaller, and needs to move so many times further
NORMED = 2.83  # a stream with norms in it bears a rate so many times smaller
MOST_STEPS = 10**12
LOST = 1e-3  # t_div below which less makes no difference
LEARNT = ("layer_scale", "rezero", "skip_init")  # wirings whose factor on a branch is a parameter
BARE_NORMS = ("even_steps",)  # wirings whose norms have no gains and no biases


@dataclass(frozen=True)
class RateLimit:
    """What decides on the rate. depth: of the design. update: by how much one step at rate 1 changes the output,
    relative and to first order, all blocks together; local: the same if blocks passed a change on as it is.
    diversity: t_div after the last block. normed: norms stand in the stream, as in post-norm blocks.

    eta_max = c t_div^b / (a s sqrt(update local)),    P(trains at eta) = 1 / (1 + (eta / eta_max)^k)
    eta_min = a m / steps,    P(in so many steps) = P(trains at eta) / (1 + (eta_min / eta)^k)

    a is 1, or CAUSAL; s is 1, or NORMED. Of the growth between update and local one half counts: in the fit neither
    alone was as good.
    """

    depth: int
    update: float
    local: float
    diversity: float
    causal: bool = False
    normed: bool = False

    @property
    def largest_rate(self) -> float:
        left = max(self.diversity, LOST) ** DIVERSITY
        stream = NORMED if self.normed else 1.0
        return C * left / (self._times * stream * math.sqrt(self.update * self.local))

    def smallest_rate(self, steps: int) -> float:
        """Below it so many steps are too few."""
        return self._times * MOVED / steps

    def probability(self, lr: float, steps: int | None = None) -> float:
        if not isinstance(lr, int | float) or isinstance(lr, bool) or not 0 < lr <= sys.float_info.max:
            raise UsageError(f"trains: lr must be a positive learning rate; got {lr!r}. 1e-3 is a usual one.")
        if steps is None:
            return _likely(self.largest_rate / lr)
        if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= MOST_STEPS:
            raise UsageError(
                f"trains: steps must be a whole number from 1 to {MOST_STEPS:,}; got {steps!r}. Leave it out."
            )
        return _likely(self.largest_rate / lr) * _likely(lr / self.smallest_rate(steps))

    @property
    def _times(self) -> float:
        return CAUSAL if self.causal else 1.0


def _likely(times: float) -> float:
    """1 / (1 + times^-k), for a rate that is so many times on the good side of a limit."""
    return 1 / (1 + math.exp(min(-SLOPE * math.log(times), 700.0)))


def limit_of(
    design: Design, n: int, *, t_sim: float, tau: float, site: str, scores: float, diversity: float
) -> RateLimit | None:
    """sum_l r_l G_l: r_l the relative change of the stream in block l at rate 1, G_l what the blocks above make of it.

    A random change grows on its way up as random gradients grow on their way down, for a matrix and its transpose have
    one norm: G_l is the product of the gradient growths above l, over the growth of the stream. Where that growth is
    not known, G_l = 1; a causal mask counts for r_l and G_l as none. None where a design has no maps.
    """
    if not has_maps(design):
        return None
    numbers = numbers_of_design(design)
    numbers["score_variance"] *= scores**2
    sizes = Branches(design.d, design.ffn_width, design.wiring in LEARNT, design.wiring not in BARE_NORMS)
    stack = {"n": n, "tau": tau, "site": site, **numbers}
    r, energies = updates_by_depth(depth=design.depth, t_sim=t_sim, sizes=sizes, **stack)
    growth = growth_of_design(replace(design, causal=False), n, t_sim=t_sim, tau=tau, scores=scores)
    above = [1.0] * design.depth if growth is None else _above(growth, energies)
    junctions = numbers["junctions"](design.depth, 1)
    normed = junctions.attention.normed_sum or junctions.network.normed_sum
    return RateLimit(design.depth, sum(map(mul, r, above)), sum(r), diversity, design.causal, normed)


def _above(growth: Tensor, energies: list[float]) -> list[float]:
    """What the blocks above each make of a relative change."""
    grown = [*accumulate(reversed(growth[1:].tolist()), mul, initial=1.0)][::-1]
    return [g * math.sqrt(e / energies[-1]) for g, e in zip(grown, energies[1:], strict=True)]
