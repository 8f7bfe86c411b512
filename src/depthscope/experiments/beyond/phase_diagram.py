"""Where tokens collapse: forecast maps over (attention gain, tau) and (n, alpha), with models that were run on them.

depthscope reproduce beyond/phase_diagram     about 20 s on two cores, 42 + 12 kinds of post-norm models.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, majority, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_sim
from depthscope.models.design import Design
from depthscope.models.trials import chain
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.reports.phase import collapse_depths, draw_depths, draw_phases
from depthscope.theory.stacks import similarity_by_depth

NUMBERS = {
    "k": 1 / 18,
    "hidden_variance": 1 / 3,
    "score_variance": 1 / 9,
}  # of torch's default law, which unit_gain has


@dataclass(frozen=True)
class Config:
    """`trials` models of `depth` blocks for each alpha and tau; for each alpha and n until tokens are lost."""

    alphas: tuple[float, ...] = (0.35, 0.7, 1.0, 1.25, 1.5, 1.75)
    taus: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
    tokens: tuple[int, ...] = (8, 32, 128)
    weights: tuple[float, ...] = (0.4, 0.7, 1.0, 2.0)
    trials: int = 4
    depth: int = 48
    n: int = 32
    d: int = 128
    seed: int = 0


SMOKE = Config(
    alphas=(0.5, 1.5), taus=(0.0, 0.2, 0.6), tokens=(8, 32), weights=(0.7, 1.5), trials=2, depth=16, n=16, d=64
)


def run(cfg: Config) -> dict[str, Tensor]:
    """Measured t_sim at the end (alphas, taus), and the block at which t_sim passes 0.99 (weights, tokens)."""
    cells = [(alpha, tau) for alpha in cfg.alphas for tau in cfg.taus]
    ends = [_curve(cfg, alpha, cfg.n, tau)[-1] for alpha, tau in track(cells, len(cells))]
    lost = [_lost(_curve(cfg, alpha, n, 0.0)) for alpha in cfg.weights for n in cfg.tokens]
    return {
        "end": torch.stack(ends).reshape(len(cfg.alphas), -1),
        "lost": torch.stack(lost).reshape(len(cfg.weights), -1),
    }


def _curve(cfg: Config, alpha: float, n: int, tau: float) -> Tensor:
    """t_sim after every block, a mean over trials."""
    remedy, curve = DeEscalate(tau), []
    X = torch.randn(cfg.trials, n, cfg.d)
    for states in chain(Design(cfg.depth, cfg.d, 4, alpha=alpha), X, between=remedy):
        curve.append(t_sim(remedy(states["out"])).mean())
    return torch.stack(curve)


def _lost(curve: Tensor) -> Tensor:
    above = (curve >= 0.99).nonzero()
    return above[0, 0].double() + 1 if len(above) else torch.tensor(torch.inf, dtype=torch.float64)


def _forecast(cfg: Config) -> tuple[Tensor, Tensor]:
    ends = [
        [similarity_by_depth(depth=cfg.depth, n=cfg.n, alpha=alpha, tau=tau, **NUMBERS)[-1] for tau in cfg.taus]
        for alpha in cfg.alphas
    ]
    depths = collapse_depths(torch.tensor(cfg.tokens), torch.tensor(cfg.weights), most=cfg.depth, **NUMBERS)
    return torch.tensor(ends), depths


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    ends, depths = _forecast(cfg)
    both = numbers["lost"].isfinite() & depths.isfinite()
    agree = numbers["lost"].isfinite() == depths.isfinite()
    lost = numbers["lost"][both] if bool(both.any()) else torch.full((1,), torch.nan)
    ratio, same = lost / depths[both], lost / lost.mean()
    phase, as_forecast = ((numbers["end"] > 0.95) == (ends > 0.95)).double().mean(), agree.double().mean()
    off, flat = ((numbers["end"] - one).abs() for one in (ends, numbers["end"].mean()))
    known, lose = majority(numbers["end"] > 0.95), majority(numbers["lost"].isfinite())
    made = stated(  # the null: one answer, the most frequent or the mean, for all
        cfg.trials,
        ("share of (gain, tau) whose phase (t_sim above or below 0.95) is as forecast", phase, 0.9, 1.0, known),
        ("t_sim at the end, largest error", off.max(), 0.0, 0.2, flat.max()),
        ("t_sim at the end, mean error", off.mean(), 0.0, 0.05, flat.mean()),
        ("collapse depth, measured over forecast: the least", ratio.min(), 0.85, 1.25, same.min()),
        ("collapse depth, measured over forecast: the largest", ratio.max(), 0.85, 1.25, same.max()),
    )
    says = "share of (n, alpha) that collapse within the depth, or do not, as forecast"
    if lose < 0.9:
        return made + stated(cfg.trials, (says, as_forecast, 0.9, 1.0, lose))
    return made + reported(cfg.trials, (says, as_forecast))  # nearly all do, as at the full size


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(11, 4.2)
    left, right = figure.subplots(1, 2)
    right.set_axisbelow(True)  # no grid over the map
    ends = [
        (alpha**2, tau, float(end))
        for alpha, row in zip(cfg.alphas, numbers["end"], strict=True)
        for tau, end in zip(cfg.taus, row, strict=True)
    ]
    draw_phases(left, depth=cfg.depth, n=cfg.n, points=ends, **NUMBERS)
    lost = [
        (n, alpha, float(block))
        for alpha, row in zip(cfg.weights, numbers["lost"], strict=True)
        for n, block in zip(cfg.tokens, row, strict=True)
        if block.isfinite()
    ]
    draw_depths(right, most=100, points=lost, **NUMBERS)
