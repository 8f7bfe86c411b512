"""Lemma 2.4: E[xi_i] = 1 + alpha^2 d sigma^2 mu_i^2, with mu_1 >= 1 - omega and mu_2 <= delta.

depthscope reproduce yu2023/lemma_2_4     about 10 s. (9) by Monte Carlo over W for random (X, P, alpha, sigma) of every
kind of P, the bounds (11) on 10,000 draws of (X, P).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, least, of_another, stated
from depthscope.experiments.random import KINDS, drawn_xi, random_attention, random_tokens
from depthscope.metrics import delta, mu, omega
from depthscope.theory import expected_xi, mu_bounds


@dataclass(frozen=True)
class Config:
    """`cases` for each kind of P, each with `draws` of W; `pairs` of X and P for the bounds."""

    cases: int = 10
    draws: int = 4000
    pairs: int = 10000
    n: int = 10
    d: int = 12
    seed: int = 0


SMOKE = Config(cases=5, draws=1000, pairs=1000)


def run(cfg: Config) -> dict[str, Tensor]:
    """(9): measured and expected xi, standard errors (2, kinds, cases); (11): mu_1, mu_2 and their bounds (pairs,)."""
    measured, predicted, errors = [], [], []
    for kind in KINDS:
        X, P = random_tokens(cfg.cases, cfg.n, cfg.d), random_attention(kind, cfg.cases, cfg.n)
        alpha, sigma = 0.2 + 1.8 * torch.rand(cfg.cases).double(), 0.05 + 0.5 * torch.rand(cfg.cases).double()
        drawn = torch.stack(drawn_xi(X, P.unsqueeze(1), alpha, sigma, cfg.draws))  # (2, draws, cases)
        measured.append(drawn.mean(1))
        errors.append(drawn.std(1) / cfg.draws**0.5)
        predicted.append(torch.stack([expected_xi(m, alpha=alpha, d=cfg.d, sigma=sigma) for m in mu(X, P)]))
    some = cfg.pairs // len(KINDS)
    P = torch.cat([random_attention(kind, some, cfg.n) for kind in KINDS])
    X = random_tokens(len(P), cfg.n, cfg.d)
    X[::2] = hardest_tokens(X[::2], P[::2])
    mu_1, mu_2 = mu(X, P)
    low, high = mu_bounds(omega(X, P), delta(P))
    rows = {"measured": measured, "predicted": predicted, "error": errors}
    bounds = {"mu_1": mu_1, "mu_1_lower": low, "mu_2": mu_2, "mu_2_upper": high}
    return {name: torch.stack(values, 1) for name, values in rows.items()} | bounds


def hardest_tokens(X: Tensor, P: Tensor) -> Tensor:
    """X with its centred part along the direction that attention keeps best, so that mu_2 = delta."""
    _, _, Vh = torch.linalg.svd(P - P.mean(-2, keepdim=True))
    top, w = Vh[..., 0, :, None], torch.randn_like(X[..., :1, :])  # (pairs, n, 1), (pairs, 1, d)
    return X.mean(-2, keepdim=True) + top * w


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    z, crossed = (
        (numbers["measured"] - one) / numbers["error"] for one in (numbers["predicted"], numbers["predicted"].flip(0))
    )  # the null of (9): the two parts exchanged
    (close, far), (rms, biased) = (
        [how(one) for one in (z, crossed)]
        for how in (lambda x: (x.abs() <= 3).double().mean(), lambda x: x.square().mean().sqrt())
    )
    low, high = numbers["mu_1_lower"], numbers["mu_2_upper"]
    lowest, wrong_low = (least(numbers["mu_1"] / one) for one in (low, of_another(low)))
    nearest, wrong_high = ((numbers["mu_2"] / one).max() for one in (high, of_another(high)))
    share = "(9): E[xi_i] = 1 + alpha^2 d sigma^2 mu_i^2 (share of cases within 3 standard errors)"
    expectation = [
        (share, close, 0.95, 1.0, far),
        ("(9) is not biased (root mean square of the gaps in standard errors)", rms, 0.7, 1.3, biased),
    ]
    bounds: list[Row] = [  # the null: the bound of another pair
        ("(11): mu_1 >= |1 - omega| (least mu_1 over it)", lowest, 1 - 1e-9, math.inf, wrong_low),
        ("(11): mu_2 <= delta, and it is reached (largest mu_2 / delta)", nearest, 1 - 1e-6, 1 + 1e-9, wrong_high),
    ]
    return stated(z.numel(), *expectation) + stated(len(low), *bounds)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, middle, right = figure.subplots(1, 3)
    for index, kind in enumerate(KINDS):
        left.loglog(numbers["predicted"][:, index].flatten(), numbers["measured"][:, index].flatten(), ".", label=kind)
    left.set(title="(9)", xlabel=r"$1 + \alpha^2 d \sigma^2 \mu_i^2$", ylabel=r"mean of $\xi_i$ over draws of W")
    middle.loglog(numbers["mu_1_lower"], numbers["mu_1"], ".", ms=2)
    right.loglog(numbers["mu_2_upper"], numbers["mu_2"], ".", ms=2)
    middle.set(title="(11): never below the line", xlabel=r"$|1 - \omega|$", ylabel=r"$\mu_1$")
    right.set(title="(11): never above the line", xlabel=r"$\delta$", ylabel=r"$\mu_2$")
    for ax in (left, middle, right):
        ax.axline((1, 1), (2, 2), color="0.4", lw=0.8)
