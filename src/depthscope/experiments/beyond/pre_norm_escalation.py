"""Do tokens grow alike in pre-norm blocks too? Slowly: odds grow with a power of depth, in post-norm exponentially.

Attention in a pre-norm block reads normed tokens, and adds its output to a stream that is not normed and grows. Block l
adds a part of the same size to a stream of about l such parts. So log(t_sim / t_div) grows by about c / l in block l
and not by a constant: as much from block L/4 to L/2 as from L/2 to L. The price is that late blocks change the stream
little. A constant tau of de-escalation, however small, outweighs a growth of c / l from some block on.

depthscope reproduce beyond/pre_norm_escalation     about 15 s: 64 blocks, both wirings, with tau = 0.1 and without.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import log_odds
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import track
from depthscope.metrics import t_sim
from depthscope.models.design import Design
from depthscope.models.trials import chain
from depthscope.remedies.de_escalate import DeEscalate

WIRINGS = ("post_norm", "pre_norm")


@dataclass(frozen=True)
class Config:
    """`trials` models of `depth` blocks, W of variance 1/d; the depth is a multiple of 4."""

    LEAST = {"depth": 16}
    depth: int = 64
    trials: int = 16
    n: int = 64
    d: int = 128
    tau: float = 0.1
    seed: int = 0


SMOKE = Config(depth=32, trials=4, n=32, d=64)


def run(cfg: Config) -> dict[str, Tensor]:
    """Log odds and t_sim by wiring and tau (0, tau), (2, 2, depth + 1); |Z - X| / |X| of a block, (2, depth)."""
    start = torch.randn(cfg.trials, cfg.n, cfg.d, dtype=torch.float64)
    log, similar, moved = [], [], []
    for index, (wiring, tau) in enumerate((wiring, tau) for wiring in WIRINGS for tau in (0.0, cfg.tau)):
        remedy, states, moves = DeEscalate(tau), [start], []
        blocks = chain(Design(cfg.depth, cfg.d, 4, wiring=wiring), start, between=remedy)
        for block in track(blocks, 4 * cfg.depth, done=index * cfg.depth):
            states.append(remedy(block["out"]))
            moves.append((block["out"] - block["X"]).norm() / block["X"].norm())
        log.append(torch.stack([log_odds(X).mean() for X in states]))
        similar.append(torch.stack([t_sim(X).mean() for X in states]))
        if tau == 0:
            moved.append(torch.stack(moves))
    shape = (2, 2, cfg.depth + 1)
    return {
        "log_odds": torch.stack(log).view(shape),
        "t_sim": torch.stack(similar).view(shape),
        "moved": torch.stack(moved),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    half, quarter = cfg.depth // 2, cfg.depth // 4
    plain, end = numbers["log_odds"][:, 0], numbers["t_sim"][:, :, -1]
    late = plain[:, -1] - plain[:, half]
    doubling = late / (plain[:, half] - plain[:, quarter])
    per_block = late / half / ((plain[:, half] - plain[:, 0]) / half)
    left = 1 - end[:, 0]
    says = "growth of log odds in the second half of the blocks over that in the first"
    doubled = "growth from L/2 to L over that from L/4 to L/2"
    return [
        *stated(
            cfg.trials,
            (f"post-norm, exponential: {says}", per_block[0], 0.7, 1.3, per_block[1]),
            (f"pre-norm, not exponential: {says}", per_block[1], 0.0, 0.5, per_block[0]),
            (f"pre-norm, a power of depth: {doubled}", doubling[1], 0.5, 1.5, doubling[0]),
            ("pre-norm: diversity left after the last block", left[1], 0.01, 1.0, left[0]),
            (f"pre-norm with tau {cfg.tau:g}: t_sim over that without", end[1, 1] / end[1, 0], 0.0, 0.7, 1.0),
        ),
        *reported(
            cfg.trials,
            (f"post-norm, exponential: {doubled}", doubling[0]),
            ("pre-norm: power of depth that the odds grow with", late[1] / math.log(2)),
            *((f"{name}: t_sim after the last block", value) for name, value in zip(WIRINGS, end[:, 0], strict=True)),
            *((f"{name}: t_sim, tau {cfg.tau:g}", value) for name, value in zip(WIRINGS, end[:, 1], strict=True)),
            *(
                (f"{name}: |Z - X| / |X|, last block", m)
                for name, m in zip(WIRINGS, numbers["moved"][:, -1], strict=True)
            ),
        ),
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    odds, moves = figure.subplots(1, 2)
    for wiring, rows in zip(WIRINGS, numbers["log_odds"], strict=True):
        for row, tau in zip(rows, (0.0, cfg.tau), strict=True):
            odds.semilogx(range(1, cfg.depth + 2), row, label=rf"{wiring}, $\tau$ = {tau:g}")
    odds.set(title="log(t_sim / t_div)", xlabel="state, from 1")
    for wiring, row in zip(WIRINGS, numbers["moved"], strict=True):
        moves.loglog(range(1, cfg.depth + 1), row, label=wiring)
    moves.set(title="|Z - X| / |X| of a block", xlabel="block")
