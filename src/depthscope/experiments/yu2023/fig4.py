"""Figure 4: pre-norm tokens grow alike too, only slower, because the stream grows while attention's input does not.

"the output norm of the pre-norm block is monotonically increasing in expectation ... Meanwhile, the norm of the
self-attention input is always fixed" (Yu & Zhang 2023, section 3.1, with (19) and (20)).

depthscope reproduce yu2023/fig4     about 40 s on two cores; depth and trials are not given in the paper.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import ChainSizes
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_sim
from depthscope.models.trials import chain
from depthscope.theory import expected_energy

WIRINGS = ("post_norm", "pre_norm")


@dataclass(frozen=True)
class Config(ChainSizes):
    """The sizes of section 2.4."""

    depth: int = 40


SMOKE = Config(trials=16, n=32, d=128, q=256, depth=24)


def energy(X: Tensor) -> Tensor:
    """|X|_F^2, (...)."""
    return X.double().square().sum((-2, -1))


def run(cfg: Config) -> dict[str, Tensor]:
    """Means over trials: t_sim of both wirings (2, depth + 1); norms in pre-norm, and (20) against |Y|^2, (depth,)."""
    start = cfg.tokens()
    numbers: dict[str, list[Tensor]] = {name: [t_sim(start).mean()] for name in WIRINGS}
    for name in ("X", "X_hat", "SA", "energy", "predicted", "measured"):
        numbers[name] = []
    designs = [cfg.design(cfg.depth, wiring=wiring) for wiring in WIRINGS]
    post, pre = chain(designs[0], start), chain(designs[1], start, pattern=True)
    for after, states in track(zip(post, pre, strict=True), cfg.depth):
        numbers["post_norm"].append(t_sim(after["out"]).mean())
        numbers["pre_norm"].append(t_sim(states["out"]).mean())
        X, X_hat, Y = states["X"], states["X_hat"], states["Y"]
        for name, state in (("X", X), ("X_hat", X_hat), ("SA", Y - X)):
            numbers[name].append(energy(state).sqrt().mean())
        mixed = energy(states["P"] @ X_hat.unsqueeze(-3)).mean(-1)  # over heads, as in Proposition 2.9
        numbers["energy"].append(energy(X).mean())
        numbers["predicted"].append(expected_energy(energy(X), mixed).mean())
        numbers["measured"].append(energy(Y).mean())
    rows = {name: torch.stack(values) for name, values in numbers.items()}
    return {"t_sim": torch.stack([rows.pop(name) for name in WIRINGS]), **rows}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    post, pre = numbers["t_sim"]
    X, X_hat, SA = numbers["X"], numbers["X_hat"], numbers["SA"]
    share, before = SA / X, numbers["energy"]
    added = (numbers["measured"] - before).sum() / (numbers["predicted"] - before).sum()
    middle = min(13, cfg.depth)
    slower = pre[middle] / post[middle]
    made = [  # the null: nothing changes
        ("the stream |X|_F grows in every block (smallest factor)", (X[1:] / X[:-1]).min(), 1.001, 2.0, 1.0),
        (
            "attention's share |SA|_F / |X|_F falls in the end (last over largest)",
            share[-1] / share.max(),
            0.0,
            0.9,
            1.0,
        ),
        ("(20): |Y|^2 grows by |P X_hat|^2 (grown over predicted, all blocks)", added, 0.9, 1.1, 0.0),
        ("similarity keeps increasing in pre-norm (smallest growth)", (pre[1:] - pre[:-1]).min(), 1e-9, 1.0, 0.0),
        (f"but slower than in post-norm (t_sim at block {middle}, pre over post)", slower, 0.0, 0.95, 1.0),
    ]
    says = "attention's role diminishes progressively: |SA|_F / |X|_F falls from the start (last over first)"
    known = (says, share[-1] / share[0], 0.0, 0.9)
    fixed = ("attention's input |X_hat|_F is fixed (largest over smallest)", X_hat.max() / X_hat.min())  # by its norm
    return [
        *stated(cfg.trials, *made),
        *stated(cfg.trials, known, expected=False),
        *reported(cfg.trials, fixed),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for name, row, style in zip(WIRINGS, numbers["t_sim"], (":", "-"), strict=True):
        left.plot(row, style, color="tab:blue", label=name)
    blocks = torch.arange(1, cfg.depth + 1)
    labels = {"X": r"$\|X\|_F$", "X_hat": r"$\|\hat X\|_F$", "SA": r"$\|P(\hat X)\hat X W\|_F$"}
    for (name, label), colour in zip(labels.items(), ("tab:blue", "tab:orange", "tab:green"), strict=True):
        right.plot(blocks, numbers[name], color=colour, label=label)
    left.set(title="token similarity t_sim", xlabel="block", ylim=(-0.02, 1.05))
    right.set(title="Frobenius norms in pre-norm", xlabel="block", ylim=(0, None))
