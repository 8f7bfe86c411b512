"""Small language models whose blocks are forced to smooth or to sharpen, or are free: which one predicts text best?

The later versions of the paper say that for text generation forcing either one hurts. The free model is an ordinary
pre-norm decoder. The arm `symmetric` has the form of the forced arms, W_V W_O = V diag(lambda) V^T, but free signs: it
shows how much of their loss is due to the form. The rate of every arm is the one with the least validation loss, from
the same grid, chosen with the first seed.

depthscope reproduce dovonon2024/text     about 5 minutes on two cores: characters of pydoc, 12 blocks, 4 arms, 5 seeds.

The budget is small, 256 steps. A loss this far from converged only says which arm learns fast.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.races import Race, draw_bands, ends, line_style, loss_by_frequency, training_curves
from depthscope.experiments.rates import run_at_best_rates
from depthscope.experiments.smoothing_arms import APART, compared, high_to_low
from depthscope.experiments.smoothing_arms import ARMS as ALL_ARMS
from depthscope.experiments.smoothing_pictures import draw_table, over
from depthscope.experiments.trainings import TextSizes
from depthscope.training.arms import rate_words
from depthscope.training.honest import TOLERANCE
from depthscope.training.significance import LEVEL

ARMS = {name: ALL_ARMS[name] for name in ("free", "sharpen", "smooth", "symmetric")}
PAIRS = (("sharpen", "free"), ("smooth", "free"), ("symmetric", "free"), ("smooth", "sharpen"))
TAUGHT = 150  # steps, from which on it is asked who is better
LEARNED = 0.4  # nats below the loss of someone who knows how frequent characters are


@dataclass(frozen=True)
class Config(TextSizes):
    """The paper's depth."""

    depth: int = 12
    trials: int = 5


SMOKE = Config(
    depth=2, rates=(8e-3,), d=16, h=2, q=16, segment=32, batch=4, steps=12, test=512, trials=1, side_by_side=False
)


def race(cfg: Config) -> Race:
    """A decoder without memory."""
    return cfg.text_race(ARMS.values(), cfg.depth, {"weight_decay": 0.01, "log_every": 0}, model="decoder")


def run(cfg: Config) -> dict[str, Tensor]:
    """Ends (arms, seeds), rates (arms,), curves of batches (arms, 3, steps): mean, lowest, highest."""
    lanes = run_at_best_rates(race(cfg), cfg.rates)
    step, loss = training_curves(lanes)
    return {
        "test_loss": ends(lanes, "test", "loss"),
        "train_loss": ends(lanes, "train", "loss"),
        "gap": ends(lanes, "test", "gap"),
        "hfc_lfc": high_to_low([[lanes]])[0, 0],
        "rate": torch.tensor([lane.lr for lane in lanes]),
        "valid_loss": torch.tensor([[trial["valid_loss"] for trial in lane.trials] for lane in lanes]),
        "step": step,
        "loss": loss,
        "by_frequency": torch.tensor(loss_by_frequency(race(cfg))),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    arms, ratio = list(ARMS), numbers["hfc_lfc"].mean(-1)
    apart = ratio[arms.index("sharpen")] / ratio[arms.index("smooth")]
    leak = 0.1  # nats, the least that yu2023/fig7 asks of an arm that does see it
    rows: list[Row] = [
        ("no arm sees the future: honest and forced loss, apart by", numbers["gap"].max(), 0.0, TOLERANCE, leak),
        ("HFC/LFC after the last block, sharpen over smooth", apart, APART, math.inf, 1.0),
    ]
    if cfg.steps >= TAUGHT:
        learned = numbers["by_frequency"] - numbers["test_loss"].mean(1).max()
        rows.append(("the worst arm: test loss below that of frequencies by", learned, LEARNED, math.inf, 0.0))
        worse = dict(zip(PAIRS, compared(numbers["test_loss"].unsqueeze(0), arms, PAIRS)[0], strict=True))
        for forced in ("sharpen", "smooth"):
            found = worse[forced, "free"]
            if not math.isnan(found.p):
                says = f"forcing hurts: the loss of {forced} above that of free, paired p"
                rows.append((says, found.p_above, 0.0, LEVEL, 0.5))
    return stated(cfg.trials, *rows)


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    figure.set_size_inches(14, 4)
    curves, ends_, table = figure.subplots(1, 3, width_ratios=(1.2, 1, 1.2))
    rates = [f"{name} @{rate_words(rate)}" for name, rate in zip(ARMS, numbers["rate"].tolist(), strict=True)]
    chance = float(numbers["by_frequency"])
    draw_bands(curves, numbers["step"], numbers["loss"], rates, batches=True, chance=chance)
    curves.set(title="training loss, each at its best rate", xlabel="step", ylabel="nats per character")
    for place, row in enumerate(numbers["test_loss"]):
        colour = line_style(place)["color"]
        ends_.plot(numbers["hfc_lfc"][place], row, "o", ms=5, alpha=0.7, color=colour, label=list(ARMS)[place])
    ends_.set(title="one dot a seed", xlabel="HFC/LFC after the last block, trained", ylabel="test loss")
    tested = compared(numbers["test_loss"].unsqueeze(0), list(ARMS), PAIRS)
    words = f"test loss above, in nats, {over(cfg.trials)}"
    draw_table(table, tested, PAIRS, ["loss"], words, scale=1.0, digits=3)
