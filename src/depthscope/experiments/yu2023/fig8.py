"""Figure 8: eta, the gap between the expected and the drawn ratio xi_1 / xi_2, vanishes as tokens grow alike or wide.

"when t is small, E[eta] is close to 0 even for d = 10; ... as d increases, E[eta] becomes closer to 0 even for larger
t values" (Yu & Zhang 2023, appendix A.3): X = e v^T + t Q with 100 tokens, the mean over 50 draws of W ~ N(0, 1/d).

depthscope reproduce yu2023/fig8     about 5 s on two cores. All three statements hold for the exact E[eta], which is
below 0.01; the mean of 50 draws cannot show them, its standard error is about sqrt(6 / (50 d)) whatever t is.
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
        W = torch.randn(cfg.trials, cfg.points, d, d, dtype=torch.float64) * d**-0.5
        Y = X + P @ X @ W  # (trials, points, n, d)
        drawn = eta(X.expand_as(Y), Y, P.expand(cfg.trials, -1, -1, -1))
        rows["mean"].append(drawn.mean(0))
        rows["error"].append(drawn.std(0) / cfg.trials**0.5)
        rows["exact"].append(expected_eta(X, P))
    return {"t": ts} | {name: torch.stack(values) for name, values in rows.items()}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    exact, small = numbers["exact"].abs(), numbers["t"] <= 0.1
    gap = (numbers["mean"] - numbers["exact"]).abs() / numbers["error"]
    wide = numbers["error"].mean() / numbers["exact"].abs().max()
    d = cfg.widths[0]
    made = [
        (f"(a) for t <= 0.1 E[eta] is close to 0 even for d = {d} (exact, largest)", exact[0, small].max(), 0.0, 0.01),
        (
            "(b) near t = 1 E[eta] is larger (exact, t = 1 over t <= 0.1)",
            exact[0, -1] / exact[0, small].mean(),
            2.0,
            1e6,
        ),
        (
            "(c) as d grows E[eta] comes closer to 0 (exact, largest d over smallest)",
            exact[-1, -1] / exact[0, -1],
            0.0,
            0.75,
        ),
        (
            "means of draws agree with the exact E[eta] (share within 3 standard errors)",
            (gap <= 3).double().mean(),
            0.95,
            1.0,
        ),
    ]
    says = f"{cfg.trials} draws are enough to see E[eta] (standard error over the largest |E[eta]|)"
    return stated(cfg.trials, *made) + stated(cfg.trials, (says, wide, 0.0, 1.0), expected=False)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    *panels, last = figure.subplots(1, len(cfg.widths) + 1)
    rows = zip(panels, cfg.widths, numbers["mean"], numbers["error"], strict=True)
    for index, (ax, d, mean, error) in enumerate(rows):
        ax.fill_between(numbers["t"], -2 * error, 2 * error, alpha=0.2, color=f"C{index}", label="2 standard errors")
        ax.plot(numbers["t"], mean, color=f"C{index}", label=f"mean of {cfg.trials} draws")
        ax.set(title=rf"$\eta$, d = {d}", xlabel="t", ylim=(-0.5, 0.5))
        last.semilogy(numbers["t"], numbers["exact"][index].abs(), color=f"C{index}", label=f"d = {d}")
    last.set(title=r"exact $|E[\eta]|$", xlabel="t")
    finish(*panels, last)
