"""Should de-escalation be nonlinear? A tau that depends on the tokens keeps one level for any gain; a fixed one cannot.

Let o = t_sim / t_div be the odds. A fixed tau multiplies them by (1 - tau)^2 whatever they are: tokens end all
different if the block's gain is below 1 / (1 - tau)^2, and all alike if it is above. A cap, tau(X) = max(0, 1 - sqrt(o*
/ o(X))), removes from the mean only what is above o*, so the odds of a block's output are (1 + alpha^2) o* for every
alpha. It is still (I - tau(X) Pi_1) X, and needs one more number of the whole sequence; since tau depends on X it is
nonlinear.

depthscope reproduce beyond/nonlinear_tau     about 10 s: four alpha, 24 post-norm blocks without networks.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_div, t_sim
from depthscope.models.design import Design
from depthscope.models.trials import chain

FORMS = ("fixed", "cap")


@dataclass(frozen=True)
class Config:
    """Post-norm blocks of attention alone, weighed by alpha, W of variance 1/d; tau, and t_sim at the cap."""

    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    tau: float = 0.5
    cap: float = 0.5
    depth: int = 24
    trials: int = 16
    n: int = 64
    d: int = 128
    seed: int = 0


SMOKE = Config(trials=4, n=32, d=64)


def run(cfg: Config) -> dict[str, Tensor]:
    """Means over trials of t_sim before de-escalation and of tau: (forms, alphas, depth) each."""
    start = torch.randn(cfg.trials, cfg.n, cfg.d, dtype=torch.float64)
    similar, strength = [], []
    for form in FORMS:
        for alpha in track(cfg.alphas, len(cfg.alphas)):
            design = Design(cfg.depth, cfg.d, 4, alpha=alpha, activation="none")
            outs = [block["out"] for block in chain(design, start, between=partial(_lowered, form=form, cfg=cfg))]
            similar.append(torch.stack([t_sim(X).mean() for X in outs]))
            strength.append(torch.stack([_tau(X, form, cfg).mean() for X in outs]))
    shape = (len(FORMS), len(cfg.alphas), cfg.depth)
    return {"t_sim": torch.stack(similar).view(shape), "tau": torch.stack(strength).view(shape)}


def _tau(X: Tensor, form: str, cfg: Config) -> Tensor:
    """tau of every trial, (trials, 1, 1)."""
    if form == "fixed":
        return torch.full((len(X), 1, 1), cfg.tau, dtype=X.dtype)
    return (1 - (cfg.cap / (1 - cfg.cap) * t_div(X) / t_sim(X)).sqrt()).clamp(min=0).view(-1, 1, 1)


def _lowered(X: Tensor, form: str, cfg: Config) -> Tensor:
    return X - _tau(X, form, cfg) * X.mean(-2, keepdim=True)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    fixed, cap = numbers["t_sim"][:, :, -4:].mean(-1)  # the last four blocks: one level
    odds = (1 + torch.tensor(cfg.alphas).double().square()) * cfg.cap / (1 - cfg.cap)
    forecast = odds / (1 + odds)
    off = (cap - forecast).abs().max()
    return [
        *stated(
            cfg.trials,
            (
                "cap: largest difference of t_sim from what the gain says",
                off,
                0.0,
                0.05,
                (fixed - forecast).abs().max(),
            ),
            (f"tau {cfg.tau:g}: t_sim at the largest alpha", fixed[-1], 0.99, 1.0, cap[-1]),
            (f"tau {cfg.tau:g}: t_sim at the smallest alpha", fixed[0], 0.0, 0.25, cap[0]),
        ),
        *reported(
            cfg.trials,
            *((f"tau {cfg.tau:g}, alpha {a:g}: t_sim", v) for a, v in zip(cfg.alphas, fixed, strict=True)),
            *((f"cap {cfg.cap:g}, alpha {a:g}: t_sim", v) for a, v in zip(cfg.alphas, cap, strict=True)),
            *(
                (f"cap {cfg.cap:g}, alpha {a:g}: tau", v)
                for a, v in zip(cfg.alphas, numbers["tau"][1, :, -1], strict=True)
            ),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    for ax, form, rows in zip(figure.subplots(1, 2, sharey=True), FORMS, numbers["t_sim"], strict=True):
        for alpha, row in zip(cfg.alphas, rows, strict=True):
            ax.plot(range(1, cfg.depth + 1), row, label=rf"$\alpha$ = {alpha:g}")
        ax.set(title=f"t_sim of a block's output, {form}", xlabel="block", ylim=(0, 1.02))
