"""Figure 6: three Vision Transformers of Table 1 in training: post-norm, pre-norm, de-escalated post-norm.

"a significant performance gap between the pure post-norm model and our de-escalated post-norm model"; the latter
"slightly outperformed its pre-norm counterpart in terms of training loss" (Yu & Zhang 2023, section 3.3; CIFAR-10).
Post-norm has half the learning rate of the others, as in the paper.

depthscope reproduce yu2023/fig6     here: digits in place of CIFAR-10, sizes DIGITS, about 3 minutes on two cores.
depthscope reproduce yu2023/fig6 --set data=uoft-cs/cifar10 --set folder=out/fig6     the paper's own, sizes TABLE_1: 9
trainings of 150 epochs, for a GPU; after an interruption the same command continues. data is also a .npz or the folder
cifar-10-batches-bin, and every size can be set: --set data=cifar10.npz --set epochs=2 --set depth=24 --set d=64; --set
train=5000 --set test=2000 takes a part of the images.

On digits, post-norm at half the rate is slower and ends at 5 times the loss. But it trains, and its tokens do not stay
alike (t_sim .36: known to differ). At the rate of the others it does not train (beyond/learning_rate). Held-out images
are those of the validation split; the test split is used once, at the end. From CONVERGED epochs on, the claims are the
paper's; for a shorter run the claims only say that it is on its way.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.races import (
    TEST_IMAGES,
    Race,
    draw_bands,
    ends,
    last_similarity,
    more_than_noise,
    run_race,
    training_curves,
    validation_curves,
)
from depthscope.experiments.trainings import Trainings
from depthscope.reports.chart import COLOURS
from depthscope.training.significance import chance_gap

ARMS = ("post-norm, half the rate", "pre-norm", "de-escalated, tau = 1")
TABLE_1 = {"depth": 80, "d": 192, "h": 8, "q": 384, "epochs": 150, "batch": 128, "lr": 1e-4, "augment": "auto"}
DIGITS = {"depth": 24, "d": 32, "h": 4, "q": 64, "epochs": 20, "batch": 64, "lr": 1e-3, "augment": "none"}
CONVERGED = 20  # epochs
IMAGES = {"digits": TEST_IMAGES, "cifar10": 10_000}  # of the test split


@dataclass(frozen=True)
class Config(Trainings):
    """data: "digits", or where CIFAR-10 is. Sizes that are not set (0 and "") are those of DIGITS, or of TABLE_1.

    train, test: how many images of each are used; 0 is all. digits knows only train.
    """

    data: str = "digits"
    train: int = 0
    test: int = 0
    depth: int = 0
    d: int = 0
    h: int = 0
    q: int = 0
    epochs: int = 0
    batch: int = 0
    lr: float = 0.0
    augment: str = ""

    def size(self, name: str) -> Any:
        return getattr(self, name) or (DIGITS if self.data == "digits" else TABLE_1)[name]


SMOKE = Config(depth=8, h=2, q=32, epochs=2, lr=8e-3, trials=1, side_by_side=False)


def race(cfg: Config) -> Race:
    """The three arms; all that is not a size is as in the paper by default: AdamW, weight decay 0.1, 1/5 twice."""
    options = {"data": "" if cfg.data == "digits" else cfg.data, "train": cfg.train, "test": cfg.test}
    return cfg.race(
        (f"post_norm@{cfg.size('lr') / 2:g}", "pre_norm", "de_escalate:tau=1,at=block_out"),
        {name: cfg.size(name) for name in ("depth", "d", "h", "q")},
        {name: cfg.size(name) for name in ("epochs", "batch", "lr", "augment")},
        "digits" if cfg.data == "digits" else "cifar10",
        **{name: value for name, value in options.items() if value},
    )


def run(cfg: Config) -> dict[str, Tensor]:
    """Ends (arms, seeds); curves (arms, 3, points): mean, lowest, highest; t_sim of the trained (arms, states)."""
    lanes = run_race(race(cfg))
    step, loss = training_curves(lanes)
    held_out_step, held_out = validation_curves(lanes)
    return {
        "train_loss": ends(lanes, "train", "loss"),
        "test_loss": ends(lanes, "test", "loss"),
        "test_accuracy": ends(lanes, "test", "accuracy"),
        "step": step,
        "loss": loss,
        "held_out_step": held_out_step,
        "held_out": held_out,
        "t_sim": last_similarity(lanes),
    }


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    (_, losses_of_pre, losses), accuracy = numbers["train_loss"], numbers["test_accuracy"]
    post, pre, ours = numbers["train_loss"].mean(1)
    images = cfg.test or IMAGES["digits" if cfg.data == "digits" else "cifar10"]
    loss_of_post = "training loss at the end, post-norm (half the rate) over de-escalated"
    seen = reported(
        cfg.trials,
        ("training loss at the end, de-escalated over pre-norm", ours / pre),
        ("test accuracy, de-escalated minus pre-norm", (accuracy[2] - accuracy[1]).mean()),
        ("t_sim after the last block, de-escalated, trained", numbers["t_sim"][2, -1]),  # 0, for tau is 1
    )
    if cfg.size("epochs") < CONVERGED:
        ahead = (accuracy[2] - accuracy[0]).mean()
        rows = (
            (f"on its way: {loss_of_post}", post / ours, 1.5, math.inf, 1.0),
            ("on its way: test accuracy, de-escalated minus post-norm", ahead, chance_gap(images), 1.0, 0.0),
        )
        return stated(cfg.trials, *rows) + seen
    known = ("t_sim after the last block, post-norm, trained: escalated", numbers["t_sim"][0, -1], 0.9, 1.0)
    return [
        *stated(cfg.trials, (loss_of_post, post / ours, 2.0, math.inf, 1.0)),
        *more_than_noise("test accuracy, de-escalated above post-norm", accuracy[2], accuracy[0], 1 / images),
        *more_than_noise("training loss, pre-norm above de-escalated", losses_of_pre, losses),
        *stated(cfg.trials, known, expected=False),
        *seen,
    ]


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    learned, held_out, tokens = figure.subplots(1, 3)
    draw_bands(learned, numbers["step"], numbers["loss"], ARMS, batches=True)
    draw_bands(held_out, numbers["held_out_step"], numbers["held_out"], ARMS)
    for row, arm, colour in zip(numbers["t_sim"], ARMS, COLOURS, strict=False):
        tokens.plot(row, color=colour, label=arm)
    learned.set(title="training loss", xlabel="step", ylim=(0, None))
    held_out.set(title="loss on held-out images", xlabel="step", ylim=(0, None))
    tokens.set(title="t_sim after training", xlabel="block", ylim=(-0.02, 1.02))
