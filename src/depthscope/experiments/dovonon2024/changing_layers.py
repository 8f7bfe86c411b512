"""Attention and weights that change from layer to layer: what is left of the theorems on smoothing.

"The analysis relies on a fixed attention matrix A across layers, but in practice this changes" (of Dovonon et al.
2024). Equal tokens stay equal under every A. So two growth rates (Lyapunov exponents) decide: that of prod (I + H_l)
for what tokens share, and that of what differs between them. ds.theory.asymptotics computes both.

depthscope reproduce dovonon2024/changing_layers     about 30 s. With H fixed both conditions on its eigenvalues hold
for any sequence of A: what differs grows by at most 1 + rho tau(A) in each layer, and by at least the mean of log |1 +
lambda_H lambda_A| over all eigenvalues (a determinant), which is above log(1 + lambda_H) in [-1, 0). If H changes too,
eigenvalues in [-1, 0) are not enough: two matrices that are not normal, taken in turn, smooth.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, majority, reported, stated
from depthscope.experiments.progress import track
from depthscope.experiments.random import random_attention
from depthscope.experiments.spectra import LAWS, check_even, cyclic_attention, orthogonal, random_H
from depthscope.theory import asymptotics, layer_spectrum

F = torch.float64
EQUAL = math.log(1e-4)  # of hfc/lfc; below it tokens are alike
LAYERS = 20  # of which single margins are taken
GROUPS = (  # what H is; A is new in every layer
    *(f"H fixed, lambda_H {law}" for law in LAWS),
    "H changes, symmetric, lambda_H in [-1, 0)",
    "H changes, symmetric, lambda_H positive",
    "two H in turn, not normal, lambda_H = -1/2",
)
NEGATIVE, TURNS = (0, 4), 6


@dataclass(frozen=True)
class Config:
    """`cases` in each group, with attention of three kinds; `shear` is how far the two H in turn are from normal."""

    cases: int = 150
    n: int = 12
    d: int = 8
    depth: int = 1000
    tie: float = 0.02
    shear: float = 4.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_even(self.d)


SMOKE = Config(cases=30, depth=500)


def run(cfg: Config) -> dict[str, Tensor]:
    """(groups, cases): both exponents, log hfc/lfc in the end, and with H fixed the mean margin of single layers."""
    rows: dict[str, list[Tensor]] = {"constant": [], "rest": [], "end": [], "curve": [], "single": []}
    for group in track(range(len(GROUPS)), len(GROUPS)):
        X = torch.randn(cfg.cases, cfg.n, cfg.d, dtype=F)
        H, h = random_H(LAWS[group], cfg.cases, cfg.d) if group < len(LAWS) else (_changing(group, cfg), None)
        found = asymptotics(X, _attentions(cfg), H, depths=(cfg.depth,))
        constant, rest = found.exponents
        logs = found.log_hfc_lfc
        curve = logs.median(0).values  # (depth + 1,)
        for name, values in [("constant", constant), ("rest", rest), ("end", logs[:, -1]), ("curve", curve)]:
            rows[name].append(values)
        if h is not None:
            margins = [layer_spectrum(h, torch.linalg.eigvals(_attention(cfg))).margin for _ in range(LAYERS)]
            rows["single"].append(torch.stack(margins).mean(0))
    return {name: torch.stack(values) for name, values in rows.items()}


def _attention(cfg: Config) -> Tensor:
    """A (cases, n, n): a third softmax of random scores, a third causal, the rest nearly cyclic."""
    third = cfg.cases // 3
    parts = [random_attention("row stochastic", third, cfg.n), random_attention("causal", third, cfg.n)]
    return torch.cat([*parts, cyclic_attention(cfg.cases - 2 * third, cfg.n)])


def _attentions(cfg: Config) -> Iterator[Tensor]:
    while True:
        yield _attention(cfg)


def _changing(group: int, cfg: Config) -> Iterator[Tensor]:
    """An H for every layer, (cases, d, d)."""
    if group == TURNS:
        Q = orthogonal(cfg.cases, cfg.d)
        shift = cfg.shear * torch.block_diag(*[torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=F)] * (cfg.d // 2))
        half = -0.5 * torch.eye(cfg.d, dtype=F)
        yield from cycle([Q @ (half + shift) @ Q.mT, Q @ (half + shift.mT) @ Q.mT])
    while True:
        u = torch.rand(cfg.cases, cfg.d, dtype=F)
        Q = orthogonal(cfg.cases, cfg.d)
        yield (Q * (-1 + 0.999 * u if group in NEGATIVE else 0.001 + 2 * u).unsqueeze(-2)) @ Q.mT


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    margin, ended = numbers["constant"] - numbers["rest"], numbers["end"] < EQUAL
    clear = margin.abs() > cfg.tie
    fixed = slice(len(LAWS))
    far = numbers["single"].abs() > cfg.tie
    agree = ((numbers["single"] > 0) == ended[fixed])[far].double().mean()
    smooth, sharp = ended.sum(1), (~ended).sum(1)  # (groups,)
    made = [  # the null: the group of the other sign
        ("A changes, H fixed with lambda_H in [-1, 0): never smooths (cases that do)", smooth[0], 0, 0, smooth[1]),
        ("A changes, H fixed with lambda_H > 0: always smooths (cases that do not)", sharp[1], 0, 0, sharp[0]),
        ("both change, H symmetric in [-1, 0): never smooths (cases that do)", smooth[4], 0, 0, smooth[5]),
        ("both change, H symmetric > 0: always smooths (cases that do not)", sharp[5], 0, 0, sharp[4]),
    ]
    known = ("both change, lambda_H in [-1, 0), not normal: never smooths (cases that do)", smooth[TURNS], 0, 0)
    says, most = "H fixed: the mean margin of single layers has the right sign (share)", majority(ended[fixed][far])
    # exponents are slopes of what ends as hfc/lfc: that the larger one decides, the simulation cannot deny
    exponents = ("the larger exponent decides (cases that differ)", ((margin > 0) != ended)[clear].sum())
    return [
        *stated(cfg.cases, *made),
        *stated(int(far.sum()), (says, agree, 0.9, 1, most)),
        *stated(cfg.cases, known, expected=False),
        *reported(int(clear.sum()), exponents),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(12, 4.5)
    left, right = figure.subplots(1, 2)
    for group, name in enumerate(GROUPS):
        look = {"color": f"C{group}"}
        left.plot(numbers["constant"][group], numbers["rest"][group], ".", ms=4, alpha=0.6, **look)
        right.plot(numbers["curve"][group][:49] / math.log(10), lw=1.5, label=name, **look)
    left.axline((0, 0), slope=1, color="0.4", lw=0.8)
    left.set(
        xlabel="exponent of what tokens share",
        ylabel="exponent of what differs",
        title="below the line tokens grow alike (smoothing)",
    )
    right.set(xlabel="layer", ylabel="log10 hfc / lfc, median", title="the first 48 layers")
    right.grid(alpha=0.25)
    right.legend(frameon=False, fontsize=7, loc="lower left")
