"""Figure 8: eta, the gap between the expected and the drawn ratio xi_1 / xi_2, vanishes as tokens grow alike or wide.

"when t is small, E[eta] is close to 0 even for d = 10; ... as d increases, E[eta] becomes closer to 0 even for larger
t values" (Yu & Zhang 2023, appendix A.3): X = e v^T + t Q with 100 tokens, the mean over 50 draws of W ~ N(0, 1/d).

depthscope reproduce yu2023/fig8     about 10 s on two cores. The claims are about the exact E[eta], over several v and
Q. The mean of 50 draws cannot show it: its standard error is about sqrt(6 / (50 d)) for every t, far above E[eta].
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import stacked
from depthscope.experiments.claim import Claim, Row, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import eta
from depthscope.models.attentions import softmax
from depthscope.theory import expected_eta


@dataclass(frozen=True)
class Config:
    """Appendix A.3; `points` values of t in (0, 1], `shapes` draws of v and Q, of which the first is sampled too."""

    n: int = 100
    widths: tuple[int, ...] = (10, 20, 40)
    points: int = 50
    trials: int = 50
    shapes: int = 10
    seed: int = 0


SMOKE = Config(points=10, trials=20, shapes=4)


def run(cfg: Config) -> dict[str, Tensor]:
    """Over t: mean of eta and its standard error (widths, points); its exact expectation (widths, shapes, points)."""
    ts = torch.arange(1, cfg.points + 1) / cfg.points
    rows = []
    for d in track(cfg.widths, len(cfg.widths)):
        v, Q = torch.randn(cfg.shapes, 1, 1, d).double(), torch.randn(cfg.shapes, 1, cfg.n, d).double()
        X = cfg.n**-0.5 * v + ts[:, None, None] * Q  # (shapes, points, n, d)
        W_q, W_k = ((2 * torch.rand(cfg.shapes, 1, d, d).double() - 1) * d**-0.5 for _ in range(2))
        P = softmax(X @ W_q, X @ W_k).softmax(-1)
        W = torch.randn(cfg.trials, cfg.points, d, d).double() * d**-0.5
        Y = X[0] + P[0] @ X[0] @ W  # (trials, points, n, d)
        drawn = eta(X[0].expand_as(Y), Y, P[0].expand(cfg.trials, -1, -1, -1))
        exact = torch.stack([expected_eta(x, p) for x, p in zip(X, P, strict=True)])
        rows.append({"mean": drawn.mean(0), "error": drawn.std(0) / cfg.trials**0.5, "exact": exact})
    return {"t": ts} | stacked(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    exact, small = numbers["exact"].abs(), numbers["t"] <= max(0.1, 1 / cfg.points)
    size = exact.amax(-1).mean(-1)  # (widths,): the largest over t, mean over shapes
    grows = exact[0, :, -1].mean() / exact[0][:, small].mean()
    largest = exact[0][:, small].max()
    made: list[Row] = [
        (f"(b) near t = 1 E[eta] is larger (t = 1 over t <= 0.1, d = {cfg.widths[0]})", grows, 2.0, torch.inf, 1.0)
    ]
    for narrow, wide, a, b in zip(cfg.widths, cfg.widths[1:], size, size[1:], strict=False):
        says = f"(c) E[eta] comes closer to 0 from d = {narrow} to {wide} (ratio of the largest)"
        made.append((says, b / a, 0.0, 0.9, 1.0))
    seen = numbers["error"].mean() / exact.max()
    says = f"{cfg.trials} draws are enough to see E[eta] (standard error over the largest |E[eta]|)"
    close = (f"(a) for t <= 0.1 E[eta] is close to 0 even for d = {cfg.widths[0]} (largest)", largest)
    return [
        *stated(cfg.shapes, *made),
        *stated(cfg.trials, (says, seen, 0.0, 1.0), expected=False),
        *reported(cfg.shapes, close),  # so it is for every t: what is small is said by (b)
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    *panels, last = figure.subplots(1, len(cfg.widths) + 1)
    rows = zip(panels, cfg.widths, numbers["mean"], numbers["error"], strict=True)
    for index, (ax, d, mean, error) in enumerate(rows):
        ax.fill_between(numbers["t"], -2 * error, 2 * error, alpha=0.2, color=f"C{index}", label="2 standard errors")
        ax.plot(numbers["t"], mean, color=f"C{index}", label=f"mean of {cfg.trials} draws")
        ax.set(title=rf"$\eta$, d = {d}", xlabel="t", ylim=(-0.5, 0.5))
        last.semilogy(numbers["t"], numbers["exact"][index].abs().mean(0), color=f"C{index}", label=f"d = {d}")
        ax.legend(frameon=False, fontsize=8, loc="lower left")  # where no curve is
    last.set(title=r"exact $|E[\eta]|$", xlabel="t")
