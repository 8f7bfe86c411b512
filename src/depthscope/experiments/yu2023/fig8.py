"""Figure 8: eta, the gap between the expected and the drawn ratio xi_1 / xi_2, vanishes as tokens grow alike or wide.

"when t is small, E[eta] is close to 0 even for d = 10; ... as d increases, E[eta] becomes closer to 0 even for larger t
values" (Yu & Zhang 2023, appendix A.3): X = e v^T + t Q with 100 tokens, the mean over 50 draws of W ~ N(0, 1/d).

depthscope reproduce yu2023/fig8     about 5 s on two cores. The exact expectation of eta is drawn beside the means.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments._axes import finish
from depthscope.experiments._claim import Claim, stated
from depthscope.experiments._progress import track
from depthscope.metrics import eta
from depthscope.models.attentions import softmax
from depthscope.theory import expected_eta


@dataclass(frozen=True)
class Config:
    """Appendix A.3; `points` values of t in (0, 1]."""

    n: int = 100
    widths: tuple[int, ...] = (10, 20, 40)
    points: int = 50
    trials: int = 50
    seed: int = 0


SMOKE = Config(points=10, trials=20)


def run(cfg: Config) -> dict[str, Tensor]:
    """Over t, (widths, points): mean of eta, its standard error, and its exact expectation."""
    ts = torch.arange(1, cfg.points + 1) / cfg.points
    rows: dict[str, list[Tensor]] = {"mean": [], "error": [], "exact": []}
    for d in track(cfg.widths):
        v, Q = torch.randn(d, dtype=torch.float64), torch.randn(cfg.n, d, dtype=torch.float64)
        X = cfg.n**-0.5 * v + ts[:, None, None] * Q  # (points, n, d)
        W_q, W_k = ((2 * torch.rand(d, d, dtype=torch.float64) - 1) * d**-0.5 for _ in range(2))
        P = softmax(X @ W_q, X @ W_k).softmax(-1)
        W = torch.randn(cfg.trials, 1, d, d, dtype=torch.float64) * d**-0.5
        Y = X + P @ X @ W  # (trials, points, n, d)
        drawn = eta(X.expand_as(Y), Y, P.expand(cfg.trials, -1, -1, -1))
        rows["mean"].append(drawn.mean(0))
        rows["error"].append(drawn.std(0) / cfg.trials**0.5)
        rows["exact"].append(expected_eta(X, P))
    return {"t": ts} | {name: torch.stack(values) for name, values in rows.items()}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    exact, small = numbers["exact"].abs(), numbers["t"] <= 0.1
    gap = (numbers["mean"] - numbers["exact"]).abs() / numbers["error"]
    inside = (gap <= 3).double().mean()
    made = [
        (
            f"(a) for t <= 0.1 E[eta] is close to 0 even for d = {cfg.widths[0]} (largest)",
            exact[0, small].max(),
            0.0,
            0.05,
        ),
        (
            "(b) E[eta] is larger near t = 1 than for t <= 0.1 (ratio, smallest d)",
            exact[0, -1] / exact[0, small].mean(),
            1.0,
            torch.inf,
        ),
        (
            "(c) E[eta] comes closer to 0 as d grows (largest d over smallest d, t = 1)",
            exact[-1, -1] / exact[0, -1],
            0.0,
            0.75,
        ),
        ("the mean of draws agrees with the exact E[eta] (share within 3 standard errors)", inside, 0.95, 1.0),
    ]
    return stated(cfg.trials, *made)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = figure.subplots(1, len(cfg.widths), sharey=True)
    for ax, d, mean, error, exact in zip(
        panels, cfg.widths, numbers["mean"], numbers["error"], numbers["exact"], strict=True
    ):
        ax.fill_between(numbers["t"], mean - 2 * error, mean + 2 * error, alpha=0.2, color="tab:blue")
        ax.plot(numbers["t"], mean, color="tab:blue", label=f"mean of {cfg.trials} draws, 2 standard errors")
        ax.plot(numbers["t"], exact, "k--", lw=1, label="exact expectation")
        ax.axhline(0, color="0.6", lw=0.8)
        ax.set(title=f"d = {d}", xlabel="t")
    panels[0].set_ylabel(r"$\eta$")
    finish(*panels)
