"""Corollary 2.7: for doubly stochastic P the mean token stays, and for symmetric P the spectral gap decides the rate.

depthscope reproduce yu2023/corollary_2_7     about 5 s. "When P is doubly stochastic, then mu_1 = 1 and omega = 0 ...
when P is symmetric, then delta^2 = |lambda_2(P)|^2" (Yu & Zhang 2023).
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.chains import stacked
from depthscope.experiments.claim import Claim, least, of_another, stated
from depthscope.experiments.random import random_attention, random_tokens
from depthscope.metrics import delta, lambda_2, mu, omega, t_sim
from depthscope.theory import doubly_stochastic_bound, expected_ratio, rate_estimate

KINDS = ("doubly stochastic", "symmetric")
CONTROL = "row stochastic"  # P of which nothing is said here
AWAY = 0.01


@dataclass(frozen=True)
class Config:
    """`pairs` of X and P for each of the two kinds, and of the control, alpha = 1."""

    pairs: int = 2000
    n: int = 12
    d: int = 64
    seed: int = 0


SMOKE = Config(pairs=200)


def run(cfg: Config) -> dict[str, Tensor]:
    """(kinds, pairs) each: mu_1, mu_2, omega, delta, |lambda_2|, exact E[r], the bound by delta, and (17).

    Of the control mu_1 and omega, (pairs,).
    """
    rows = []
    for kind in KINDS:
        X, P = random_tokens(cfg.pairs, cfg.n, cfg.d), random_attention(kind, cfg.pairs, cfg.n)
        t, (mu_1, mu_2), dl, second = t_sim(X), mu(X, P), delta(P), lambda_2(P)
        values = {"mu_1": mu_1, "mu_2": mu_2, "omega": omega(X, P), "delta": dl, "lambda_2": second}
        values["rate"] = 1 + (expected_ratio(X, P) - 1) * t
        rows.append(values | {"bound": doubly_stochastic_bound(t, dl), "estimate": rate_estimate(t, second)})
    X, P = random_tokens(cfg.pairs, cfg.n, cfg.d), random_attention(CONTROL, cfg.pairs, cfg.n)
    return stacked(rows) | {"control_mu_1": mu(X, P)[0], "control_omega": omega(X, P)}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    away = numbers["delta"].square() - numbers["mu_2"].square() >= AWAY  # (15): as Theorem 2.6, this needs it
    gap, control = ((numbers[name] - 1).abs() for name in ("mu_1", "control_mu_1"))
    apart = (numbers["delta"] / numbers["lambda_2"] - 1).abs()

    def over(bounds: Tensor, kinds: slice) -> float:
        """The least E[r] over its bound."""
        return least((numbers["rate"] / bounds)[kinds][away[kinds]])

    both, symmetric = slice(None), slice(1, None)
    bound, wrong_bound = (over(one, both) for one in (numbers["bound"], of_another(numbers["bound"])))
    estimate, wrong_estimate = (over(one, symmetric) for one in (numbers["estimate"], of_another(numbers["estimate"])))
    omegas, unequal = numbers["control_omega"].median(), apart[0].median()
    exact = 1 - 1e-9  # rounding
    equal = [
        ("doubly stochastic P: mu_1 = 1 (largest gap)", gap.max(), 0.0, 1e-8, control.median()),
        ("doubly stochastic P: omega = 0 (largest)", numbers["omega"].max(), 0.0, 1e-8, omegas),
    ]
    reached = ("symmetric P: delta = |lambda_2| (largest relative gap)", apart[1].max(), 0.0, 1e-9, unequal)
    by_delta = ("the bound by delta holds (least E[r] over it)", bound, exact, math.inf, wrong_bound)
    by_gap = ("(17) holds for symmetric P (least E[r] over it)", estimate, exact, math.inf, wrong_estimate)
    return [  # the null: the control, and P that is not symmetric, in the middle; the bound of another pair
        *stated(2 * cfg.pairs, *equal),
        *stated(cfg.pairs, reached),
        *stated(int(away.sum()), by_delta),
        *stated(int(away[1].sum()), by_gap),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for index, kind in enumerate(KINDS):
        left.plot(numbers["lambda_2"][index], numbers["delta"][index], ".", ms=2, label=kind)
        right.loglog(numbers["estimate"][index] - 1, numbers["rate"][index] - 1, ".", ms=2, label=kind)
    left.set(xlabel=r"$|\lambda_2(P)|$", ylabel=r"$\delta$", title="equal for symmetric P, delta larger otherwise")
    right.set(xlabel="(17) - 1", ylabel="exact E[r] - 1", title="(17) bounds symmetric P")
    for ax in (left, right):
        ax.axline((0.1, 0.1), (1, 1), color="0.4", lw=0.8)
