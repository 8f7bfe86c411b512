"""Theorem 2.6: attention makes tokens alike in expectation, at least as fast as omega and delta say.

depthscope reproduce yu2023/theorem_2_6     about 20 s. The expected rate is exact (Gaussian W), not a sample mean, so
that 10,000 random (X, P) can be held against the bound (16). "d sufficiently large" is made exact: E[eta] <= Delta.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments._axes import finish
from depthscope.experiments._claim import Claim
from depthscope.experiments._progress import track
from depthscope.experiments._random import KINDS, random_attention, random_tokens
from depthscope.metrics import delta, mu, omega, t_sim
from depthscope.theory import expected_eta, expected_rate, preconditions, ratio_lower_bound


@dataclass(frozen=True)
class Config:
    """`pairs` of X and P with omega + delta < 1, over all kinds of P; more than 10,000 of them meet both conditions."""

    pairs: int = 10400
    n: int = 12
    d: int = 16
    seed: int = 0


SMOKE = Config(pairs=400)


def run(cfg: Config) -> dict[str, Tensor]:
    """Pairs with omega + delta < 1: exact E[r], bound (16), whether E[eta] <= Delta; and the share of such pairs."""
    rows: dict[str, list[Tensor]] = {"rate": [], "bound": [], "large_enough": [], "kind": []}
    shares, wanted = [], cfg.pairs // len(KINDS)
    for index in track(range(len(KINDS))):
        kept: dict[str, list[Tensor]] = {name: [] for name in rows}
        tried = met = 0
        while met < wanted and tried < 40 * wanted:  # causal attention meets it rarely
            numbers, inside = _pairs(cfg, KINDS[index], wanted)
            tried, met = tried + wanted, met + int(inside.sum())
            for name, values in numbers.items():
                kept[name].append(values[inside])
            kept["kind"].append(torch.full((int(inside.sum()),), index))
        shares.append(met / tried)
        for name, parts in kept.items():
            rows[name].append(torch.cat(parts)[:wanted])
    return {name: torch.cat(parts) for name, parts in rows.items()} | {"share": torch.tensor(shares)}


def _pairs(cfg: Config, kind: str, count: int) -> tuple[dict[str, Tensor], Tensor]:
    X, P = random_tokens(count, cfg.n, cfg.d), random_attention(kind, count, cfg.n)
    alpha = 0.2 + 1.8 * torch.rand(count).double()
    (mu_1, mu_2), t = mu(X, P), t_sim(X)
    w, dl = omega(X, P), delta(P)
    eta = expected_eta(X, P, alpha=alpha)
    rate = expected_rate(t, mu_1, mu_2, alpha=alpha, eta=eta)
    bound = 1 + (ratio_lower_bound(w, dl, alpha=alpha) - 1) * t
    whole = preconditions(w, dl, mu_1=mu_1, mu_2=mu_2, alpha=alpha, eta=eta)
    return {"rate": rate, "bound": bound, "large_enough": torch.as_tensor(whole.holds)}, w + dl < 1


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    enough, gap = numbers["large_enough"], numbers["rate"] - numbers["bound"]
    slow = (numbers["rate"][enough] <= 1).sum()
    tolerance = 1e-6 * numbers["rate"]  # of the exact expectation's quadrature
    return [
        Claim(
            "(16) bounds the expected rate where its conditions hold (pairs that break it)",
            float((gap < -tolerance)[enough].sum()),
            0.0,
            0.0,
            int(enough.sum()),
        ),
        Claim("and tokens do grow alike there (pairs with E[r] <= 1)", float(slow), 0.0, 0.0, int(enough.sum())),
        Claim(
            f"at d = {cfg.d} omega + delta < 1 alone is nearly enough (share of pairs that break (16))",
            float((gap < -tolerance).double().mean()),
            0.0,
            1e-3,
            len(gap),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for index, kind in enumerate(KINDS):
        these = numbers["kind"] == index
        if bool(these.any()):
            left.loglog(numbers["bound"][these] - 1, numbers["rate"][these] - 1, ".", ms=2, label=kind)
    left.axline((1, 1), (2, 2), color="0.4", lw=0.8)
    left.set(xlabel="bound (16) - 1", ylabel="exact E[r] - 1", title="never below the line")
    right.bar(KINDS, numbers["share"].tolist())
    right.set(title=r"share of random pairs with $\omega + \delta < 1$", ylim=(0, 1))
    finish(left, right)
