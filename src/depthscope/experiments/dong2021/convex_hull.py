"""Convex hull: a Transformer of six blocks without feed-forward networks finds the corners of a cloud of points.

10 points in the plane, in no order: which of them are corners of their convex hull? (Dong et al. 2021, section 4.2;
sizes and numbers of its public code: 10,000 clouds to learn from, 300 to test, whole model 0.90, a guess 0.54.)

depthscope reproduce dong2021/convex_hull     about 30 s on two cores, three seeds. Rate, batch and schedule are ours:
at a hundred times the code's 1e-5, three epochs are enough for 0.98. What paths of each length know is in
dong2021/path_effectiveness, with the same models.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.axes import finish
from depthscope.experiments.claim import Claim, stated
from depthscope.experiments.dong_tasks import SIZES, SMALL, draw_learning, whole_model

PAPER, LEAST_HERE = 0.90, 0.85
LEAST = {"trials": 1}


@dataclass(frozen=True)
class Config:
    """d, h: width and heads of the six blocks; train, test: clouds; folder: where runs are kept and go on."""

    d: int = SIZES["convex_hull"]["d"]
    h: int = SIZES["convex_hull"]["h"]
    epochs: int = SIZES["convex_hull"]["epochs"]
    batch: int = SIZES["convex_hull"]["batch"]
    lr: float = SIZES["convex_hull"]["lr"]
    train: int = SIZES["convex_hull"]["train"]
    test: int = SIZES["convex_hull"]["test"]
    trials: int = 3
    folder: str = ""
    side_by_side: bool = True
    seed: int = 0


SMOKE = Config(**SMALL["convex_hull"], trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Test accuracies (seeds,), validation accuracy on the way (3, looks), relative residuals (3, states)."""
    return whole_model("convex_hull", cfg)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    accuracy, (_, whole, pure) = numbers["accuracy"], numbers["residual"][:, -1]
    return stated(
        cfg.trials,
        (f"the whole model finds the corners: test accuracy (paper {PAPER})", accuracy.mean(), LEAST_HERE, 1.0),
        ("above who does not look: least over seeds", accuracy.min() - numbers["chance"], 0.25, 1.0),
        ("relative residual after the last block, whole model", whole, 0.3, math.inf),
        ("the same with the residual connections taken out", pure, 0.0, 1e-3),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    lines = {"the paper's whole model": PAPER, "who does not look": float(numbers["chance"])}
    learned, left = draw_learning(figure, numbers, lines)
    learned.set_title("corners of 10 points")
    finish(learned, left)
