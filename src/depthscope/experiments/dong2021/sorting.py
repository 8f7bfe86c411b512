"""Sorting: a Transformer of six blocks without feed-forward networks learns to sort eight numbers.

Every place of a sequence names the i-th smallest of it (Dong et al. 2021, section 4.1; sizes and numbers of its public
code: 1,000 sequences to learn from, 200 to test, whole model 0.98, a guess 0.10).

depthscope reproduce dong2021/sorting     about 30 s on two cores, three seeds. Rate and schedule are ours: a hundred
times the code's 1e-5, and a third of its 65 epochs. A guess that knows the place, and not the numbers, is right in a
third of the cases. Take the residual connections out of the trained model, and its tokens are all alike after four
blocks: the logarithm of what tells them apart more than doubles with every block. What paths of each length know is in
dong2021/path_effectiveness, with the same models.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.axes import finish
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.dong_tasks import SIZES, SMALL, draw_learning, whole_model

PAPER, LEAST_HERE = 0.98, 0.95
LEAST = {"trials": 1}


@dataclass(frozen=True)
class Config:
    """d, h: width and heads of the six blocks; train, test: sequences; folder: where runs are kept and go on."""

    d: int = SIZES["sorting"]["d"]
    h: int = SIZES["sorting"]["h"]
    epochs: int = SIZES["sorting"]["epochs"]
    batch: int = SIZES["sorting"]["batch"]
    lr: float = SIZES["sorting"]["lr"]
    train: int = SIZES["sorting"]["train"]
    test: int = SIZES["sorting"]["test"]
    trials: int = 3
    folder: str = ""
    side_by_side: bool = True
    seed: int = 0


SMOKE = Config(**SMALL["sorting"], trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Test accuracies (seeds,), validation accuracy on the way (3, looks), relative residuals (3, states)."""
    return whole_model("sorting", cfg)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    accuracy, (_, whole, pure) = numbers["accuracy"], numbers["residual"][:, -1]
    return stated(
        cfg.trials,
        (f"the whole model sorts: test accuracy (paper {PAPER})", accuracy.mean(), LEAST_HERE, 1.0),
        ("above who knows the place alone: least over seeds", accuracy.min() - numbers["chance"], 0.5, 1.0),
        ("relative residual after the last block, whole model", whole, 0.3, math.inf),
        ("the same with the residual connections taken out", pure, 0.0, 1e-3),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    lines = {"the paper's whole model": PAPER, "who knows the place alone": float(numbers["chance"])}
    learned, left = draw_learning(figure, numbers, lines)
    learned.set_title("sorting 8 numbers")
    finish(learned, left)
