"""Propositions 2.5 and 2.9: the expected escalation rate, with one head (13) and with many (18).

depthscope reproduce yu2023/proposition_2_9     about 10 s. E[eta] is exact (Gaussian W), so that (13) and (18) are
tested as equations, by Monte Carlo over W for random (X, P_1 ... P_h, alpha, sigma).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.chains import stacked
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import KINDS, drawn_xi, random_attention, random_tokens
from depthscope.metrics import mu, t_sim
from depthscope.theory import expected_eta, expected_rate, mu_bar


@dataclass(frozen=True)
class Config:
    """`cases` for each kind of P and each number of heads, each with `draws` of W."""

    cases: int = 10
    draws: int = 4000
    n: int = 8
    d: int = 16
    heads: tuple[int, ...] = (1, 2, 4, 8)
    seed: int = 0

    def __post_init__(self) -> None:
        for h in self.heads:
            if self.d % h:
                raise UsageError(f"yu2023/proposition_2_9: heads must divide the width; got d = {self.d} and h = {h}.")


SMOKE = Config(draws=2000)


def run(cfg: Config) -> dict[str, Tensor]:
    """Per number of heads, (heads, kinds * cases): mean of r, its standard error, and (18) with the exact E[eta]."""
    rows = []
    for h in track(cfg.heads, len(cfg.heads)):
        count = cfg.cases * len(KINDS)
        X = random_tokens(count, cfg.n, cfg.d)
        P = torch.cat([random_attention(kind, cfg.cases * h, cfg.n) for kind in KINDS]).unflatten(0, (count, h))
        alpha, sigma = 0.2 + 1.8 * torch.rand(count).double(), (0.3 + torch.rand(count).double()) * cfg.d**-0.5
        xi_1, xi_2 = drawn_xi(X, P, alpha, sigma, cfg.draws)
        r = 1 + (xi_1 / xi_2 - 1) * t_sim(X)  # (draws, cases)
        mu_1, mu_2 = (mu_bar(m) for m in mu(X, P))
        law = {"alpha": alpha, "d": cfg.d, "sigma": sigma}
        eta = expected_eta(X, P, alpha=alpha, sigma=sigma)
        rates = {"predicted": expected_rate(t_sim(X), mu_1, mu_2, eta=eta, **law)}
        rates["without_eta"] = expected_rate(t_sim(X), mu_1, mu_2, **law)
        rows.append({"measured": r.mean(0), "error": r.std(0) / cfg.draws**0.5, **rates})
    return stacked(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    z, flat = ((numbers["measured"] - one) / numbers["error"] for one in (numbers["predicted"], 1.0))  # null: r = 1
    rough, none = ((one / numbers["predicted"] - 1).abs().mean() for one in (numbers["without_eta"], 1.0))
    made = []
    for h, row, null in zip(cfg.heads, *((one.abs() <= 3).double().mean(1) for one in (z, flat)), strict=True):
        equation = "(13)" if h == 1 else "(18)"
        says = f"{equation} with h = {h} (share of cases within 3 standard errors)"
        made += stated(z.shape[1], (says, row, 0.95, 1.0, null))
    rms, biased = (one.square().mean().sqrt() for one in (z, flat))
    return made + stated(
        z.numel(),
        ("no bias (root mean square of the gaps in standard errors)", rms, 0.75, 1.25, biased),
        (f"E[eta] is small already at d = {cfg.d} (mean change of r without it)", rough, 0.0, 0.05, none),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    panels = figure.subplots(1, len(cfg.heads), squeeze=False)[0]
    for ax, h, measured, predicted in zip(panels, cfg.heads, numbers["measured"], numbers["predicted"], strict=True):
        ax.plot(predicted, measured, ".", ms=3)
        ax.axline((1, 1), (2, 2), color="0.4", lw=0.8)
        ax.set(title=f"h = {h}", xlabel="(18) with E[eta]")
    panels[0].set_ylabel("mean of r over draws of W")
