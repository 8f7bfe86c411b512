"""Is it the learning rate? Deep post-norm fails at the rate at which the others train, and trains at smaller ones.

A comparison at one rate for all arms overstates what a remedy does: a rate three to ten times smaller helps too, at the
price of slower and somewhat worse training. All arms have the same budget, weights and data order for each seed. Only
post-norm gets several rates, so the comparison favours it.

depthscope reproduce beyond/learning_rate     about 5 minutes on two cores: digits, 24 blocks, 20 epochs, 3 seeds.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.races import (
    CHANCE,
    TEST_IMAGES,
    draw_accuracies,
    draw_bands,
    ends,
    more_than_noise,
    run_race,
    training_curves,
)
from depthscope.experiments.trainings import Sizes
from depthscope.training.arms import rate_words
from depthscope.training.significance import chance_gap

CONVERGED = 20  # epochs; after fewer, an arm is only asked whether it learns at all


@dataclass(frozen=True)
class Config(Sizes):
    """rates: of post-norm, falling; the first is also that of the others."""

    rates: tuple[float, ...] = (1e-3, 3e-4, 1e-4)
    depth: int = 24
    epochs: int = 20


SMOKE = Config(rates=(8e-3, 4e-3), depth=8, h=2, q=32, epochs=2, trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Ends (arms, seeds) and training losses (arms, 3, steps); arms: post-norm at each rate, pre-norm, de-escalated."""
    if len(cfg.rates) < 2 or any(later >= rate for rate, later in pairwise(cfg.rates)):
        raise UsageError(
            f"learning_rate: rates must be two or more, each below the one before; got {list(cfg.rates)}. "
            "For example --set rates=[1e-3,3e-4]."
        )
    arms = (*(f"post_norm@{rate:g}" for rate in cfg.rates), "pre_norm", "de_escalate")
    recipe = {"epochs": cfg.epochs, "batch": cfg.batch, "lr": cfg.rates[0]}
    lanes = run_race(cfg.race(arms, cfg.model(cfg.depth), recipe))
    step, loss = training_curves(lanes)
    return {
        "train_loss": ends(lanes, "train", "loss"),
        "valid_loss": ends(lanes, "valid", "loss"),
        "test_accuracy": ends(lanes, "test", "accuracy"),
        "step": step,
        "loss": loss,
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    """Post-norm's best rate is the one of least validation loss."""
    loss, accuracy = numbers["train_loss"].mean(1), numbers["test_accuracy"]
    valid = numbers["valid_loss"][: len(cfg.rates)].mean(1)
    best = int(valid.nan_to_num(nan=math.inf).argmin())
    first, converged = rate_words(cfg.rates[0]), cfg.epochs >= CONVERGED
    recovered, mended, usual, worse = (0.2, 0.05, 0.05, 2.0) if converged else (0.85, 0.5, 0.85, 1.5)
    ahead = "test accuracy, de-escalated above post-norm at its best rate"
    rows: list[Row] = [  # the null: a guess; where a guess is claimed, the best rate
        (f"post-norm at {first}: training loss over ln 10, a guess", loss[0] / CHANCE, 0.95, 1.1, loss[best] / CHANCE),
        ("post-norm at its best rate: the same", loss[best] / CHANCE, 0.0, recovered, 1.0),
        (f"de-escalated at {first}: the same", loss[-1] / CHANCE, 0.0, mended, 1.0),
        (f"pre-norm at {first}: the same", loss[-2] / CHANCE, 0.0, usual, 1.0),
        ("training loss, post-norm at its best rate over de-escalated", loss[best] / loss[-1], worse, math.inf, 1.0),
    ]
    if converged:
        rows.append(("post-norm at its best rate: test accuracy", accuracy[best].mean(), 0.95, 1.0, 0.1))
        return stated(cfg.trials, *rows) + more_than_noise(ahead, accuracy[-1], accuracy[best], 1 / TEST_IMAGES)
    by = (accuracy[-1] - accuracy[best]).mean()
    return stated(cfg.trials, *rows, (f"{ahead} by", by, chance_gap(TEST_IMAGES), 1.0, 0.0))


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    curves, dots = figure.subplots(1, 2)
    names = [*(f"post-norm, {rate_words(rate)}" for rate in cfg.rates)]
    names += [f"{arm}, {rate_words(cfg.rates[0])}" for arm in ("pre-norm", "de-escalated")]
    draw_bands(curves, numbers["step"], numbers["loss"], names, batches=True)
    draw_accuracies(dots, numbers["test_accuracy"], names)
    curves.set(title="training loss", xlabel="step", ylim=(0, None))
