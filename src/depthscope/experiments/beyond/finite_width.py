"""How wide must a model be for Theorem 2.6? For softmax attention d = 8 is enough, for lazy uniform attention no width.

Theorem 2.6 of Yu & Zhang 2023 asks for omega + delta < 1 and for "d sufficiently large". The exact E[r] lets us test
the second condition: we count the pairs (X, P) with omega + delta < 1 for which the bound (16) lies above E[r].

depthscope reproduce beyond/finite_width     about 5 s on two cores. P = s I + (1 - s) 1 1^T / n has delta = mu_2 = s
and omega = 0: (11) is an equality there, so any E[eta] > 0, however small, breaks the bound.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import random_attention
from depthscope.metrics import delta, omega, t_sim
from depthscope.models.attentions import softmax
from depthscope.theory import expected_ratio, ratio_lower_bound

KINDS = ("softmax of X", "doubly stochastic", "lazy uniform", "lazy uniform, tokens on a line")


@dataclass(frozen=True)
class Config:
    """`pairs` of X and P for each width and kind, alpha = 1."""

    widths: tuple[int, ...] = (4, 8, 16, 32, 64)
    pairs: int = 1000
    n: int = 8
    seed: int = 0


SMOKE = Config(pairs=100, widths=(4, 8, 32))


def pairs_of(kind: str, count: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """X (count, n, d) and P (count, n, n) of one of the KINDS."""
    X = torch.randn(count, n, d, dtype=torch.float64)
    if kind == "softmax of X":
        W_q, W_k = ((2 * torch.rand(count, d, d, dtype=torch.float64) - 1) * d**-0.5 for _ in range(2))
        return X, softmax(X @ W_q, X @ W_k).softmax(-1)
    if kind == "doubly stochastic":
        return X, random_attention(kind, count, n)
    if kind == KINDS[-1]:
        X = torch.randn(count, n, 1, dtype=torch.float64) * torch.randn(count, 1, d, dtype=torch.float64)
    s = torch.rand(count, 1, 1, dtype=torch.float64)
    return X, s * torch.eye(n, dtype=torch.float64) + (1 - s) / n


def run(cfg: Config) -> dict[str, Tensor]:
    """Share of pairs that break (16), and the largest gap bound - E[r]: (kinds, widths) each."""
    shares, gaps = [], []
    for kind in track(KINDS, len(KINDS)):
        row = []
        for d in cfg.widths:
            X, P = pairs_of(kind, cfg.pairs, cfg.n, d)
            w, dl = omega(X, P), delta(P)
            gap = (ratio_lower_bound(w, dl) - expected_ratio(X, P)) * t_sim(X)
            row.append(gap[w + dl < 1 - 1e-9])
        shares.append(torch.stack([(gap > 1e-9).double().mean() for gap in row]))
        gaps.append(torch.stack([gap.max() for gap in row]))
    return {"share": torch.stack(shares), "gap": torch.stack(gaps)}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    wide = torch.tensor(cfg.widths) >= 8
    last = numbers["share"][:, -1]
    broken = numbers["share"][0, wide].max()
    made = [("softmax attention: (16) holds from d = 8 on (share that breaks it)", broken, 0.0, 1e-3, last[2:].min())]
    known = [
        (f"{kind}: (16) holds at d = {cfg.widths[-1]} (share that breaks it)", share, 0.0, 1e-3)
        for kind, share in zip(KINDS[2:], last[2:], strict=True)
    ]
    return stated(cfg.pairs, *made) + stated(cfg.pairs, *known, expected=False)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for kind, share, gap in zip(KINDS, numbers["share"], numbers["gap"], strict=True):
        left.semilogx(cfg.widths, share, marker=".", base=2, label=kind)
        right.loglog(cfg.widths, gap.clamp_min(1e-9), marker=".", label=kind)
    left.set(title=r"pairs with $\omega + \delta < 1$ that break (16)", xlabel="width d", ylim=(-0.02, 1.05))
    right.set(title="largest gap, bound (16) - E[r]", xlabel="width d", ylim=(1e-8, 1))
