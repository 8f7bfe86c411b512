"""Convex hull: a Transformer of six blocks without feed-forward networks finds the corners of a cloud of points.

10 points in the plane, in no order: which of them are corners of their convex hull? (Dong et al. 2021, section 4.2;
sizes and numbers of its public code: 10,000 clouds to learn from, 300 to test, whole model 0.90, a guess 0.54.)

depthscope reproduce dong2021/convex_hull     about 30 s on two cores, three seeds. Rate, batch and schedule are ours:
at a hundred times the code's 1e-5, three epochs are enough for 0.98. What paths of each length know is in
dong2021/path_effectiveness, with the same models.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim
from depthscope.experiments.dong_tasks import SIZES, SMALL, claims_of, draw_learning, whole_model
from depthscope.experiments.trainings import Trainings

PAPER, LEAST_HERE = 0.90, 0.85


@dataclass(frozen=True)
class Config(Trainings):
    """d, h: width and heads of the six blocks; train, test: clouds."""

    d: int = SIZES["convex_hull"]["d"]
    h: int = SIZES["convex_hull"]["h"]
    epochs: int = SIZES["convex_hull"]["epochs"]
    batch: int = SIZES["convex_hull"]["batch"]
    lr: float = SIZES["convex_hull"]["lr"]
    train: int = SIZES["convex_hull"]["train"]
    test: int = SIZES["convex_hull"]["test"]


SMOKE = Config(**SMALL["convex_hull"], trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Test accuracies (seeds,), validation accuracy on the way (3, looks), relative residuals (3, states)."""
    return whole_model("convex_hull", cfg)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    accuracy, chance = numbers["accuracy"], numbers["chance"]
    return claims_of(
        numbers,
        cfg,
        (f"the whole model finds the corners: test accuracy (paper {PAPER})", accuracy.mean(), LEAST_HERE, 1.0, chance),
        ("above who does not look: least over seeds", accuracy.min() - chance, 0.25, 1.0, 0.0),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    lines = {"the paper's whole model": PAPER, "who does not look": float(numbers["chance"])}
    draw_learning(figure, numbers, "corners of 10 points", lines)
