"""Memorization: a Transformer of six blocks without feed-forward networks learns random labels of words by heart.

A text in stretches of 128 words, without positions, and for each word a label, 0 or 1, drawn at random (Dong et al.
2021, section 4.3; sizes and numbers of its public code: 500 stretches, whole model 0.85, a guess 0.5). The text is the
help inside Python, theirs is that of RTE. The accuracy is on what was learned: there is nothing else to ask.

depthscope reproduce dong2021/memorization     about 7 minutes on two cores, three seeds. Rate, batch and schedule are
ours. Without positions a word that comes again in its stretch has one answer, and its labels may be two: no model of
this kind can know more than 0.855 of the labels of this text, and ours ends within 0.01 of that. (The paper's 0.85 may
be such a limit too; its text is another.) What paths of each length know is in dong2021/path_effectiveness.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim
from depthscope.experiments.dong_tasks import SIZES, SMALL, claims_of, draw_learning, whole_model
from depthscope.experiments.trainings import Trainings
from depthscope.training.tasks.memorization import memorization

PAPER, LEAST_HERE = 0.85, 0.80


@dataclass(frozen=True)
class Config(Trainings):
    """d, h: width and heads of the six blocks; sequences, length: stretches and their words."""

    d: int = SIZES["memorization"]["d"]
    h: int = SIZES["memorization"]["h"]
    epochs: int = SIZES["memorization"]["epochs"]
    batch: int = SIZES["memorization"]["batch"]
    lr: float = SIZES["memorization"]["lr"]
    sequences: int = SIZES["memorization"]["sequences"]
    length: int = SIZES["memorization"]["length"]


SMOKE = Config(**SMALL["memorization"], trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Accuracies (seeds,), the best there can be, accuracy on the way (3, looks), relative residuals (3, states)."""
    best = memorization(sequences=cfg.sequences, length=cfg.length).facts["best"]
    return whole_model("memorization", cfg) | {"best": torch.tensor(best)}


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    found, best, chance = numbers["accuracy"].mean(), numbers["best"], numbers["chance"]
    known = (found - chance) / (best - chance)
    return claims_of(
        numbers,
        cfg,
        (f"the whole model remembers: accuracy on what it learned (paper {PAPER})", found, LEAST_HERE, 1.0, chance),
        ("of what can be known beyond a guess, the share that it knows", known, 0.85, 1.0, 0.0),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    best, chance = float(numbers["best"]), float(numbers["chance"])
    lines = {"the paper's whole model": PAPER, "a guess": chance, "the best without positions": best}
    draw_learning(figure, numbers, "random labels learned by heart", lines)
