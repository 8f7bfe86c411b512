"""Section 2.1: tokens grow alike whatever the formula of the attention matrix, as long as it is row-stochastic.

"we use the standard softmax formula to construct attention matrices P (though we have tried other formulas without
notable differences)" (Yu & Zhang 2023). They are not named; here: uniform, sigmoid, Gaussian kernel and Sinkhorn.

depthscope reproduce yu2023/other_attentions     about 20 s on two cores.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import ChainSizes, stacked
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.progress import track
from depthscope.metrics import lambda_2, t_sim, xi
from depthscope.models.trials import chain

FORMULAS = ("softmax", "uniform", "sigmoid", "gaussian", "sinkhorn")


@dataclass(frozen=True)
class Config(ChainSizes):
    """The sizes of section 2.4."""

    depth: int = 16


SMOKE = Config(trials=16, n=32, d=128, q=256)


def run(cfg: Config) -> dict[str, Tensor]:
    """Means over trials: t_sim (formulas, depth + 1), xi_1 / xi_2 of step 1 and |lambda_2| (formulas, depth)."""
    X, rows = cfg.tokens(), []
    for index, formula in enumerate(FORMULAS):
        similarity, ratios, second = [t_sim(X).mean()], [], []
        blocks = chain(cfg.design(cfg.depth, attention=formula), X, pattern=True)
        for states in track(blocks, cfg.depth * len(FORMULAS), done=index * cfg.depth):
            xi_1, xi_2 = xi(states["X"], states["Y_1"])
            similarity.append(t_sim(states["out"]).mean())
            ratios.append((xi_1 / xi_2).mean())
            second.append(lambda_2(states["P"]).mean())
        values = {"t_sim": similarity, "ratio": ratios, "lambda_2": second}
        rows.append({name: torch.stack(row) for name, row in values.items()})
    return stacked(rows)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    apart = (numbers["t_sim"] - numbers["t_sim"][0]).abs().max(1).values
    none = numbers["t_sim"][0].max() - numbers["t_sim"][0, 0]  # the null: attention does nothing
    made: list[Row] = [
        ("all formulas: xi_1/xi_2 of step 1 is about 2 (smallest mean)", numbers["ratio"].min(), 1.8, 2.2, 1.0),
        ("all formulas: xi_1/xi_2 of step 1 is about 2 (largest mean)", numbers["ratio"].max(), 1.8, 2.2, 1.0),
        *(
            (f"{formula}: no notable difference (largest gap of t_sim to softmax)", gap, 0.0, 0.1, none)
            for formula, gap in list(zip(FORMULAS, apart, strict=True))[1:]
        ),
    ]
    return stated(cfg.trials, *made)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, middle, right = figure.subplots(1, 3)
    blocks = torch.arange(1, cfg.depth + 1)
    for index, formula in enumerate(FORMULAS):
        left.plot(numbers["t_sim"][index], label=formula)
        middle.plot(blocks, numbers["ratio"][index], marker=".", label=formula)
        right.plot(blocks, numbers["lambda_2"][index], marker=".", label=formula)
    left.set(title="token similarity t_sim", xlabel="block", ylim=(-0.02, 1.05))
    middle.set(title=r"$\xi_1/\xi_2$ of step 1", xlabel="block", ylim=(1, 2.6))
    right.set(title=r"$|\lambda_2(P)|$", xlabel="block", ylim=(0, None))
