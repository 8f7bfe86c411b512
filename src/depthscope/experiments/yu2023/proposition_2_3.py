"""Proposition 2.3: the escalation rate is an identity in the growth of the two parts, r = 1 + (xi_1 / xi_2 - 1) t_sim.

depthscope reproduce yu2023/proposition_2_3     a second. Any pair X, Y: no weights and no attention are assumed.
Equivalently odds(Y) = (xi_1 / xi_2) odds(X) with odds = t_sim / t_div, the form that adds up over blocks.
The identity is true of any projection, a wrong one as well. So xi and t_sim, which project, are held against r and
odds by the products of tokens, which do not.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.random import random_tokens
from depthscope.metrics import t_sim, xi
from depthscope.theory import odds


@dataclass(frozen=True)
class Config:
    """Pairs of independent random states."""

    trials: int = 10000
    n: int = 16
    d: int = 24
    seed: int = 0


SMOKE = Config(trials=1000)


def run(cfg: Config) -> dict[str, Tensor]:
    """Per pair: r and the odds of X and Y by products of tokens; r, the ratio and the odds of Y by xi, (trials,)."""
    X, Y = (random_tokens(cfg.trials, cfg.n, cfg.d) for _ in range(2))
    xi_1, xi_2 = xi(X, Y)
    before, after = by_products(X), by_products(Y)
    return {
        "r": (1 - before) / (1 - after),
        "identity": 1 + (xi_1 / xi_2 - 1) * t_sim(X),
        "ratio": xi_1 / xi_2,
        "odds_before": before / (1 - before),
        "odds": after / (1 - after),
        "odds_form": xi_1 / xi_2 * odds(t_sim(X)),
    }


def by_products(X: Tensor) -> Tensor:
    """t_sim: the mean of x_i . x_j over all pairs of tokens, over the mean of x_i . x_i; X (..., n, d) -> (...)."""
    products = X @ X.mT
    return products.mean((-2, -1)) / products.diagonal(dim1=-2, dim2=-1).mean(-1)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    r, ratio = numbers["r"], numbers["ratio"]
    errors = [(numbers[a] / numbers[b] - 1).abs().max() for a, b in (("identity", "r"), ("odds_form", "odds"))]
    unmoved = [(one - 1).abs().median() for one in (1 / r, numbers["odds_before"] / numbers["odds"])]
    disagree = ((r > 1) != (ratio > 1)).sum()
    made: list[Row] = [  # the null: both parts grow alike, by the middle of the pairs; a coin
        ("(6): r = 1 + (xi_1/xi_2 - 1) t_sim(X) (largest relative error)", errors[0], 0.0, 1e-9, unmoved[0]),
        ("r > 1 if and only if xi_1 > xi_2 (pairs that disagree)", disagree, 0.0, 0.0, cfg.trials / 2),
        ("odds form: odds(Y) = (xi_1/xi_2) odds(X) (largest relative error)", errors[1], 0.0, 1e-9, unmoved[1]),
    ]
    return stated(cfg.trials, *made)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    left.loglog(numbers["r"], numbers["identity"], ".", ms=2)
    left.set(xlabel="r by products of tokens", ylabel=r"$1 + (\xi_1/\xi_2 - 1)\, t_{sim}(X)$", title="Proposition 2.3")
    right.loglog(numbers["ratio"], numbers["r"], ".", ms=2)
    right.axhline(1, color="0.6", lw=0.8)
    right.axvline(1, color="0.6", lw=0.8)
    right.set(xlabel=r"$\xi_1/\xi_2$", ylabel="r", title=r"$r > 1$ exactly when $\xi_1 > \xi_2$")
