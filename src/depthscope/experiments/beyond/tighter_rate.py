"""Can the bound of Theorem 2.6 be tightened? How much of the exact rate (16) and two sharper forms reach.

(16) of Yu & Zhang 2023 uses only omega and delta of P. A head keeps mu_1 >= 1 - omega of the mean token, and mu_1 costs
one product P X. So (1 + alpha^2 mu_1^2) / (1 + alpha^2 delta^2) is a sharper form, and it needs no condition on omega.
With mu_2 in place of delta it becomes the estimate (13), which differs from the exact E[r] by E[eta] alone; it is no
bound.

depthscope reproduce beyond/tighter_rate     about 10 s: 8,000 random pairs (X, P) of four kinds, exact E[r].
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, of_another, reported, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import KINDS, random_attention, random_tokens
from depthscope.metrics import delta, mu, omega, t_sim
from depthscope.theory import expected_ratio

EXACT = 1 - 1e-9  # rounding
FORMS = ("omega and delta (16)", "mu_1 and delta", "mu_1 and mu_2 (13)")


@dataclass(frozen=True)
class Config:
    """`pairs` of X (n, d) and P over all kinds of P, alpha uniform in (0.2, 2)."""

    pairs: int = 8000
    n: int = 12
    d: int = 32
    seed: int = 0


SMOKE = Config(pairs=400)


def run(cfg: Config) -> dict[str, Tensor]:
    """Of every pair the exact rate E[r] (pairs,), the three forms (3, pairs), its kind, and omega + delta < 1."""
    rows = [_pairs(cfg, kind) for kind in track(KINDS, len(KINDS))]
    return {name: torch.cat([row[name] for row in rows], -1) for name in rows[0]}


def _pairs(cfg: Config, kind: str) -> dict[str, Tensor]:
    count = cfg.pairs // len(KINDS)
    X, P = random_tokens(count, cfg.n, cfg.d), random_attention(kind, count, cfg.n)
    alpha = 0.2 + 1.8 * torch.rand(count).double()
    (mu_1, mu_2), t, o, d = mu(X, P), t_sim(X), omega(X, P), delta(P)
    kept = ((1 - o).clamp(min=0), mu_1, mu_1), (d, d, mu_2)
    ratios = [_grown(alpha, common) / _grown(alpha, apart) for common, apart in zip(*kept, strict=True)]
    return {
        "rate": 1 + (expected_ratio(X, P, alpha=alpha) - 1) * t,
        "forms": 1 + (torch.stack(ratios) - 1) * t,
        "kind": torch.full((count,), KINDS.index(kind)),
        "inside": o + d < 1,
    }


def _grown(alpha: Tensor, kept: Tensor) -> Tensor:
    """1 + alpha^2 kept^2, what a step with d Var(W) = 1 makes of the energy of which attention keeps kept^2."""
    return 1 + (alpha * kept).square()


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    rate, forms, inside = numbers["rate"], numbers["forms"], numbers["inside"]
    told = ((forms - 1) / (rate - 1))[:, inside].median(-1).values
    broken, by_chance = ((rate / one < EXACT).double().mean() for one in (forms[1], of_another(forms[1])))
    says = "median share of E[r] - 1, where omega + delta < 1"
    return [
        *stated(
            len(rate),
            ("mu_1 for 1 - omega: share of pairs above E[r], no condition asked", broken, 0.0, 5e-3, by_chance),
            (
                f"mu_1 for 1 - omega tells more than (16): {says}, over that of (16)",
                told[1] / told[0],
                1.02,
                math.inf,
                1,
            ),
            (f"(13) is nearly exact: {says}", told[2], 0.9, 1.1, told[0]),
        ),
        *reported(
            len(rate),
            *((f"{form}: {says}", value) for form, value in zip(FORMS, told, strict=True)),
            ("(13) above E[r]: share of pairs (it is no bound)", (forms[2] > rate / EXACT).double().mean()),
            ("pairs with omega + delta < 1", inside.double().mean()),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    inside = numbers["inside"]
    for ax, form, values in zip(figure.subplots(1, 3, sharex=True, sharey=True), FORMS, numbers["forms"], strict=True):
        ax.plot(values[inside] - 1, numbers["rate"][inside] - 1, ".", ms=2, label=form)
        ax.axline((0, 0), (1, 1), color="0.4", lw=0.8)
        ax.set(title=form, xlabel="this form - 1", ylabel="exact E[r] - 1")
