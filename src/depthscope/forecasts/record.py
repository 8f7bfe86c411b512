"""The Forecast record: the curve that is expected, and what follows from it."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.forecasts.chance import Chance, chance_of
from depthscope.forecasts.rate_limit import RateLimit
from depthscope.records import Record, since
from depthscope.theory.depth import critical_tau


@dataclass(frozen=True, eq=False)
class Forecast(Record):
    """Token similarity, diversity and cosine before block 1 and after every block, (depth + 1,) each.

    Attributes:
        source: What was forecast.
        assumed: What the forecast assumes, in words.
        measured: How many of the first blocks were measured and not forecast (from a scan).
        band: Where t_sim lies in nine cases of ten, (2, depth + 1): over models with the same first blocks, or, for a
            forecast by weights, over what it neglects.
        gradient_growth: |dL/dX_{l-1}| / |dL/dX_l| of every block, (depth,); None where no theory is known.
        warnings: Why this forecast may be far off, in words; empty if there is no reason.
        rate_limit: What the largest learning rate depends on.

    Examples:
        >>> found = ds.forecast(depth=24, n=64, d=64, h=4)
        >>> found.t_sim.shape, round(found.critical_tau, 2)
        (torch.Size([25]), 0.29)
    """

    FORMAT = "depthscope.forecast"
    VERSION = 4  # 1 had bare NaN and Infinity, which are not JSON; 2 no warnings, a band of scans alone; 3 no rates

    source: str
    n: int
    t_sim: Tensor
    t_div: Tensor
    t_cos: Tensor
    assumed: list[str] = field(default_factory=list)
    measured: int = 0
    band: Tensor | None = None
    gradient_growth: Tensor | None = None
    tau: float = 0.0  # de-escalation that is in it
    warnings: list[str] = since(3, default_factory=list)
    rate_limit: RateLimit | None = since(4, default=None)

    @property
    def depth(self) -> int:
        return len(self.t_sim) - 1

    def gist(self) -> str:
        """What was forecast, and when tokens are lost."""
        lost, left = self.collapse_depth(), f"t_div {float(self.t_div[-1]):.2g} at the end"
        when = "no collapse" if math.isinf(lost) else f"tokens lost after {lost:.1f} blocks"
        return f"{self.source}, {self.depth} blocks: {when}, {left}"

    @property
    def growth(self) -> Tensor:
        """What every block multiplies the odds t_sim / t_div by, (depth,); the gain of theory/depth.py."""
        odds = self.t_sim / self.t_div
        return odds[1:] / odds[:-1]

    @property
    def gain(self) -> float:
        """The growth of a block in the end: the geometric mean over the last quarter that is no rounding noise."""
        usable = (self.t_div[1:] > 1e-12) & (self.t_sim[1:] > 1e-12) & self.growth.isfinite()
        logs = self.growth[usable].log()
        return math.exp(float(logs[-max(1, len(logs) // 4) :].mean())) if len(logs) else 1.0

    def collapse_depth(self, threshold: float = 0.99) -> float:
        """After how many blocks t_sim passes the threshold; inf when it does not within this depth."""
        if not 0 < threshold < 1:
            raise UsageError(f"collapse_depth: threshold must lie in (0, 1); got {threshold}.")
        above = (self.t_sim >= threshold).nonzero()
        if not len(above):
            return math.inf
        block = int(above[0])
        if block == 0:
            return 0.0
        a, b = (math.log(float(self.t_sim[i]) / max(float(self.t_div[i]), 1e-300)) for i in (block - 1, block))
        goal = math.log(threshold / (1 - threshold))
        return block - 1 + (goal - a) / (b - a)

    @property
    def critical_tau(self) -> float:
        """The least tau at block_out that stops this growth: 1 - 1 / sqrt(gain), beside what is there already."""
        further = float(critical_tau(max(self.gain, 1e-12)))
        return 1 - (1 - self.tau) * (1 - further)

    @property
    def largest_rate(self) -> float:
        """The largest learning rate of Adam(W), without warm-up, at which it is as likely to train as not."""
        return self._limit("largest_rate").largest_rate

    def trains(self, lr: float, steps: int | None = None) -> Chance:
        """How likely it is to train by Adam(W) at this rate, and how often such forecasts were right.

        steps: in so many steps something must have been learned; left out, there are enough.
        """
        return chance_of(self._limit("trains"), lr, steps)

    def _limit(self, asked: str) -> RateLimit:
        if self.rate_limit is None:
            raise UsageError(
                f"{asked}: is known for sizes and for reference models as they were drawn; this forecast is of "
                f"{self.source}. Give sizes: ds.forecast(depth=48, d=256, h=8, wiring=...)."
            )
        return self.rate_limit
