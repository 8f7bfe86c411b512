"""Where does de-escalation stop the collapse? The transition in tau sits at 1 - 1/sqrt(gain), gain = 1 + alpha^2.

Nearly collapsed tokens go through post-norm blocks with de-escalation of strength tau: below the threshold they
collapse further, above it they come apart again. The transition is where the odds t_sim / t_div stay as they are.

depthscope reproduce beyond/critical_tau     about 5 s on two cores: alpha 0.5, 1, 2, tau swept across the threshold.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import log_odds
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import alike_tokens
from depthscope.models.design import Design
from depthscope.models.trials import chain
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.theory.depth import critical_tau


@dataclass(frozen=True)
class Config:
    """`trials` models of `depth` blocks for each alpha and each of the tau around the threshold; W of variance 1/d."""

    alphas: tuple[float, ...] = (0.5, 1.0, 2.0)
    around: tuple[float, ...] = (-0.09, -0.06, -0.03, 0.0, 0.03, 0.06, 0.09)
    trials: int = 32
    depth: int = 4
    n: int = 32
    d: int = 128
    t_sim: float = 0.99
    seed: int = 0


SMOKE = Config(trials=12, around=(-0.08, 0.0, 0.08))


def run(cfg: Config) -> dict[str, Tensor]:
    """Growth of the log odds per block, (alphas, taus), and the tau where it is zero, (alphas,)."""
    growth, found = [], []
    for alpha in track(cfg.alphas, len(cfg.alphas)):
        threshold = float(critical_tau(alpha=alpha))
        row = torch.stack([_growth(cfg, alpha, threshold + step) for step in cfg.around])
        growth.append(row)
        found.append(_zero(torch.tensor(cfg.around, dtype=torch.float64) + threshold, row))
    return {"growth": torch.stack(growth), "transition": torch.stack(found)}


def _growth(cfg: Config, alpha: float, tau: float) -> Tensor:
    X = alike_tokens(cfg.t_sim, cfg.trials, cfg.n, cfg.d)
    remedy, last = DeEscalate(tau), X
    for states in chain(Design(cfg.depth, cfg.d, 4, alpha=alpha), X, between=remedy):
        last = remedy(states["out"])
    return ((log_odds(last) - log_odds(X)) / cfg.depth).mean()


def _zero(tau: Tensor, growth: Tensor) -> Tensor:
    """Where a straight line through the points is zero."""
    slope = ((tau - tau.mean()) * growth).sum() / (tau - tau.mean()).square().sum()
    return tau.mean() - growth.mean() / slope


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    says = "tau at the transition, minus 1 - 1/sqrt(1 + alpha^2)"
    thresholds = torch.tensor([critical_tau(alpha=alpha) for alpha in cfg.alphas], dtype=torch.float64)
    rows = [
        (f"alpha = {alpha:g}: {says}", found - tau, -0.03, 0.03, -tau)  # the null: any tau stops it
        for alpha, found, tau in zip(cfg.alphas, numbers["transition"], thresholds, strict=True)
    ]
    # a block multiplies odds by g (1 - tau)^2, which is 1 at the threshold
    grown, shrunk = (
        (numbers["growth"][:, k] / (2 * torch.log1p(-cfg.around[k] / (1 - thresholds)))).min() for k in (0, -1)
    )
    return stated(
        cfg.trials,
        *rows,
        ("below the threshold odds grow: least growth of log odds over what is forecast", grown, 0.5, 1.5, 0.0),
        ("above it they shrink: the same", shrunk, 0.5, 1.5, 0.0),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    ax = figure.subplots()
    for alpha, row in zip(cfg.alphas, numbers["growth"], strict=True):
        threshold = float(critical_tau(alpha=alpha))
        line = ax.plot([threshold + step for step in cfg.around], row, marker=".", label=rf"$\alpha$ = {alpha:g}")[0]
        ax.axvline(threshold, color=line.get_color(), ls=":", lw=1)
    ax.axhline(0, color="k", lw=0.8)
    ax.set(title="growth of log odds per block; dotted: 1 - 1/sqrt(1 + alpha^2)", xlabel=r"$\tau$")
