"""Remark 2.8: in the end every block divides token diversity by 1 + alpha^2.

"the rate is linear and asymptotically 1/(1 + alpha^2) = 1/2 for alpha = 1. Experiments show that the rate 1/2 occurs
quite early in practice" (Yu & Zhang 2023).

depthscope reproduce yu2023/remark_2_8     about 60 s on two cores; expect 0.80, 0.50 and 0.20 for alpha 0.5, 1 and 2
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.chains import ChainSizes
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_div
from depthscope.models.trials import chain
from depthscope.theory import collapse_depth, limit_factor

LATE, FLOOR = 1e-3, 1e-10  # the end: little diversity is left, but more than float32 noise


@dataclass(frozen=True)
class Config(ChainSizes):
    """The sizes of section 2.4."""

    trials: int = 10
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0)

    @property
    def depths(self) -> list[int]:
        """Blocks until t_div is well below LATE, by the odds form, for each alpha."""
        return [round(collapse_depth(1 / self.n, alpha=a, threshold=1 - LATE / 50)) for a in self.alphas]

    def __post_init__(self) -> None:
        for alpha, depth in zip(self.alphas, self.depths, strict=True):
            if not 4 <= depth <= 2000:
                raise UsageError(f"yu2023/remark_2_8: alpha must lie about in [0.1, 20]; got {alpha}: {depth} blocks.")


SMOKE = Config(trials=4, n=32, d=128, q=256)


def run(cfg: Config) -> dict[str, Tensor]:
    """t_div of every block output for each alpha, (trials, depth + 1); the depth is what the odds form asks for."""
    numbers = {}
    depths = cfg.depths
    for index, (alpha, depth) in enumerate(zip(cfg.alphas, depths, strict=True)):
        X = cfg.tokens()
        rows = [t_div(X)]
        for states in track(chain(cfg.design(depth, alpha=alpha), X), sum(depths), done=sum(depths[:index])):
            rows.append(t_div(states["out"]))
        numbers[f"alpha {alpha:g}"] = torch.stack(rows, 1)
    return numbers


def factors(rows: Tensor) -> Tensor:
    """t_div after over t_div before, for the blocks at the end, over all trials."""
    late = (rows[:, :-1] < LATE) & (rows[:, 1:] > FLOOR)
    return (rows[:, 1:] / rows[:, :-1])[late]


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    made = []
    for alpha in cfg.alphas:
        goal, found = limit_factor(alpha), factors(numbers[f"alpha {alpha:g}"])
        says = f"alpha = {alpha:g}: late blocks multiply t_div by 1/(1 + alpha^2) = {goal:.3g}"
        made += stated(cfg.trials, (says, found.mean(), goal - 0.05, goal + 0.05, 1.0))
    return made


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for index, alpha in enumerate(cfg.alphas):
        mean = numbers[f"alpha {alpha:g}"].log().mean(0).exp()
        left.semilogy(mean, color=f"C{index}", label=f"alpha = {alpha:g}")
        right.plot(torch.arange(1, len(mean)), mean[1:] / mean[:-1], color=f"C{index}", label=f"alpha = {alpha:g}")
        right.axhline(limit_factor(alpha), color=f"C{index}", ls=":", lw=1)
    left.set(title="token diversity t_div", xlabel="block")
    right.set(title=r"factor per block (dotted: $1/(1+\alpha^2)$)", xlabel="block", ylim=(0, 1.05))
