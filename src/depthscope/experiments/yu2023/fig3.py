"""Figure 3: the bound (16) and the estimate (17) against the mean over 1000 draws of W.

"although Estimate 2 is theoretically valid only for symmetric attention matrix P, in the experiment it actually
provides a closer approximation than the guaranteed lower bound in Estimate 1" (Yu & Zhang 2023, section 2.4).

depthscope reproduce yu2023/fig3     about 15 s on two cores. Only W of step 1 is drawn again, everything else
including X is fixed, block by block; each block then passes X on with a W of its own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import ChainSizes, stacked
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.progress import track
from depthscope.metrics import delta, lambda_2, omega, t_sim
from depthscope.models.block import Block
from depthscope.theory import expected_ratio, expected_xi, mu_bar, mu_bounds, ratio_estimate


@dataclass(frozen=True)
class Config(ChainSizes):
    """Section 2.4 with 1000 trials."""

    trials: int = 1000
    depth: int = 20


SMOKE = Config(trials=200, n=32, d=64, h=4, q=128, depth=12)
AT_ONCE = 100  # trials, so that what is worked on stays in the cache


def ratios_of_draws(X: Tensor, P: Tensor, trials: int) -> Tensor:
    """xi_1 / xi_2 of Y = X + [P_1 X W_1 ... P_h X W_h] for `trials` draws of W ~ N(0, 1/d): X (n, d), P (h, n, n).

    X = R Q^T with orthonormal columns in Q, so X W = R G where G = Q^T W is again iid N(0, 1/d), but min(n, d) x d: the
    law of Y is exact, while d / n times fewer numbers are drawn and multiplied.
    """
    (n, d), h = X.shape, P.shape[0]
    PR = P @ torch.linalg.qr(X.T).R.T  # (h, n, m)
    e_PR, Pi_2_PR = PR.mean(-2, keepdim=True), PR - PR.mean(-2, keepdim=True)
    e_X, Pi_2_X = X.mean(0), X - X.mean(0)
    found = []
    for some in torch.arange(trials).split(AT_ONCE):
        G = torch.randn(h, PR.shape[-1], len(some) * (d // h)) * d**-0.5
        common = (e_PR @ G).view(h, len(some), -1) + e_X.view(h, 1, -1)  # (h, trials, d/h)
        centred = (Pi_2_PR @ G).view(h, n, len(some), -1) + Pi_2_X.view(n, h, 1, -1).transpose(0, 1)
        found.append(common.square().sum((0, 2)) / centred.square().sum((0, 1, 3)))
    return torch.cat(found) * (Pi_2_X.square().sum() / e_X.square().sum())


@torch.no_grad()
def run(cfg: Config) -> dict[str, Tensor]:
    """Per block: t_sim of X, mean and standard error of xi_1 / xi_2, its exact expectation, and both estimates."""
    design = cfg.design(cfg.depth)
    X = torch.randn(cfg.n, cfg.d)
    rows = []
    for index in track(range(cfg.depth), cfg.depth):
        block = Block(design, index + 1)
        P = block.attention.pattern(X)
        ratios = ratios_of_draws(X, P, cfg.trials).double()
        low, high = mu_bounds(omega(X, P), delta(P))  # per head; the averages of Proposition 2.9 are root mean squares
        rows.append(
            {
                "t_sim": t_sim(X),
                "mean": ratios.mean(),
                "error": ratios.std() / cfg.trials**0.5,
                "exact": expected_ratio(X, P),
                "estimate_1": expected_xi(mu_bar(low)) / expected_xi(mu_bar(high)),
                "estimate_2": ratio_estimate(mu_bar(lambda_2(P))),
            }
        )
        X = block(X)
    return stacked(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    mean, error, exact = numbers["mean"], numbers["error"], numbers["exact"]
    gaps = [(numbers[name] - exact).abs() for name in ("estimate_1", "estimate_2")]
    rates = {name: 1 + (numbers[name] - 1) * numbers["t_sim"] for name in ("mean", "estimate_1", "estimate_2")}
    apart = torch.stack([(rates[name] / rates["mean"] - 1).abs() for name in ("estimate_1", "estimate_2")])
    off, none = (((mean - one) / error).abs().max() for one in (exact, 1.0))
    excess, other = ((one - exact).max() for one in (numbers["estimate_1"], numbers["estimate_1"].flip(0)))
    closer, flat = gaps[1].mean() / gaps[0].mean(), (1 / rates["mean"] - 1).abs().max()
    made: list[Row] = [  # the null: no attention; the bound of another block; two estimates as good as each other
        ("(18): mean of xi_1/xi_2 is its expectation (largest gap in standard errors)", off, 0, 4, none),
        ("Estimate 1 is a lower bound (largest excess over the expectation)", excess, -2, 0, other),
        ("Estimate 2 is closer than Estimate 1 (share of blocks)", (gaps[1] < gaps[0]).double().mean(), 0.9, 1, 0.5),
        ("Estimate 2 is closer than Estimate 1 (mean gap, Estimate 2 over Estimate 1)", closer, 0, 0.9, 1),
        ("the three curves of r are nearly identical (largest relative gap)", apart.max(), 0, 0.05, flat),
    ]
    return stated(cfg.trials, *made)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, middle, right = figure.subplots(1, 3)
    blocks = torch.arange(1, cfg.depth + 1)
    left.plot(blocks, numbers["t_sim"], color="tab:blue")
    labels = {
        "mean": f"mean of {cfg.trials} draws",
        "exact": "exact expectation",
        "estimate_1": "Estimate 1, bound (16)",
        "estimate_2": "Estimate 2, (17)",
    }
    for (name, label), style in zip(labels.items(), ("-", ":", "--", "-."), strict=True):
        middle.plot(blocks, numbers[name] - 1, style, label=label)
        right.plot(blocks, 1 + (numbers[name] - 1) * numbers["t_sim"], style, label=label)
    left.set(title="token similarity of X", xlabel="block", ylim=(-0.02, 1.05))
    middle.set(title=r"$\xi_1/\xi_2 - 1$", xlabel="block")
    right.set(title="escalation rate r(X, Y)", xlabel="block")
