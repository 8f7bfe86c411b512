"""Figure 2: tokens grow alike because attention doubles the odds t_sim / t_div in every block; the other steps do not.

"similarity monotonically increases throughout all blocks, approaching the maximum before block 15, due to the fact that
in Step 1 the mean of xi_1 / xi_2 stays around 2" (Yu & Zhang 2023, section 2.4).

depthscope reproduce yu2023/fig2     about 50 s on two cores. Section 2.4 prints the variance h/d for W, which gives a
ratio of 9 by the paper's own (18); 1/d gives 2. Both are run: unit_gain (1/d) and paper_literal (h/d).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.chains import ChainSizes, stacked
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.progress import track
from depthscope.metrics import delta, omega, t_div, t_sim, xi
from depthscope.models.trials import chain

LAWS = ("unit_gain", "paper_literal")
STEPS = ("X", "Y_1", "Y_2", "Y_3", "Y_4")
FLOOR = 1e-10  # of t_div: below it float32 noise takes part


@dataclass(frozen=True)
class Config(ChainSizes):
    """Section 2.4."""

    trials: int = 50
    depth: int = 20
    alpha: float = 1.0


SMOKE = Config(trials=24, d=128, q=256)


def run(cfg: Config) -> dict[str, Tensor]:
    """Means over trials: t_sim (laws, depth + 1), ratio xi_1 / xi_2 (laws, depth, 4), delta and omega (laws, depth)."""
    return stacked([_one_law(cfg, law, index * cfg.depth) for index, law in enumerate(LAWS)])


def _one_law(cfg: Config, law: str, done: int) -> dict[str, Tensor]:
    design, X = cfg.design(cfg.depth, alpha=cfg.alpha, weights=law), cfg.tokens()
    similarity, diversity, ratios, deltas, omegas = [t_sim(X)], [], [], [], []
    for states in track(chain(design, X, pattern=True), cfg.depth * len(LAWS), done=done):
        pairs = [xi(states[a], states[b]) for a, b in pairwise(STEPS)]
        ratios.append(torch.stack([one / two for one, two in pairs], -1).mean(0))
        deltas.append(delta(states["P"]).mean())
        omegas.append(omega(states["X"], states["P"]).mean())
        similarity.append(t_sim(states["out"]))
        diversity.append(t_div(states["X"]).mean())
    rows = torch.stack(similarity, -1)  # (trials, depth + 1)
    return {
        "t_sim": rows.mean(0),
        "t_sim_spread": rows.std(0),
        "t_div_in": torch.stack(diversity),
        "ratio": torch.stack(ratios),
        "delta": torch.stack(deltas),
        "omega": torch.stack(omegas),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    unit, literal = numbers["ratio"]
    t_unit = numbers["t_sim"][0]
    goal = 1 + cfg.alpha**2
    wide, norms = (0.9 * goal, 1.1 * goal), torch.cat([unit[:, 1], unit[:, 3]])
    before_floor = literal[:, 0][numbers["t_div_in"][1] > FLOOR]
    smallest_step = float((t_unit[1:] - t_unit[:-1]).min())
    grown = before_floor.median() / (1 + cfg.h * cfg.alpha**2)
    small, first = goal / (1 + cfg.h * cfg.alpha**2), numbers["delta"][0].max()
    made = [  # the null: nothing happens; for the norms, what attention does; delta 1 (nothing is mixed), omega 1
        ("step 1 multiplies the odds by about 2 in every block (smallest mean)", unit[:, 0].min(), *wide, 1.0),
        ("step 1 multiplies the odds by about 2 in every block (largest mean)", unit[:, 0].max(), *wide, 1.0),
        ("layer norms (steps 2 and 4) have no impact: smallest ratio", norms.min(), 0.97, 1.03, unit[:, 0].min()),
        ("layer norms (steps 2 and 4) have no impact: largest ratio", norms.max(), 0.97, 1.03, unit[:, 0].max()),
        ("similarity grows in every block (smallest growth)", smallest_step, 1e-9, 1.0, 0.0),
        ("similarity is near its maximum by block 13", t_unit[min(13, cfg.depth)], 0.99, 1.0, t_unit[0]),
        ("delta is far below 1 from the start", first, 0.0, 0.5, 1.0),
        ("omega is far below 1 from the start", numbers["omega"][0].max(), 0.0, 0.5, 1.0),
        ("delta goes to 0", numbers["delta"][0, -1], 0.0, 0.05, first),
        ("(18) with variance h/d: step 1 multiplies the odds by 1 + h alpha^2", grown, 0.85, 1.15, small),
    ]
    known = [
        ("the feed-forward step (3) has no impact: largest ratio", unit[:, 2].max(), 0.97, 1.03),
        ("with variance h/d, as printed, step 1 still gives about 2", before_floor.median(), *wide),
    ]
    return stated(cfg.trials, *made) + stated(cfg.trials, *known, expected=False)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    left, middle, right = figure.subplots(1, 3)
    for law, row, style in zip(LAWS, numbers["t_sim"], ("-", ":"), strict=True):
        left.plot(row, style, color="tab:blue", label=f"{law}, Var W = {'1/d' if law == 'unit_gain' else 'h/d'}")
    blocks = torch.arange(1, cfg.depth + 1)
    names = ("step 1: attention", "step 2: LN", "step 3: FFN", "step 4: LN")
    for name, column in zip(names, numbers["ratio"][0].T, strict=True):
        middle.plot(blocks, column, marker=".", label=name)
    for name in ("delta", "omega"):
        right.plot(blocks, numbers[name][0], marker=".", label=name)
    left.set(title="token similarity t_sim", xlabel="block", ylim=(-0.02, 1.05))
    middle.set(title=r"$\xi_1/\xi_2$ of each step (unit_gain)", xlabel="block", ylim=(0.8, 2.4))
    right.set(title="attention matrices (unit_gain)", xlabel="block", ylim=(0, None))
