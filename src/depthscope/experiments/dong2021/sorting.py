"""Sorting: a Transformer of six blocks without feed-forward networks learns to sort eight numbers.

Every place of a sequence names the i-th smallest of it (Dong et al. 2021, section 4.1; sizes and numbers of its public
code: 1,000 sequences to learn from, 200 to test, whole model 0.98, a guess 0.10).

depthscope reproduce dong2021/sorting     about 30 s on two cores, three seeds. Rate and schedule are ours: a hundred
times the code's 1e-5, and a third of its 65 epochs. A guess that knows the place, and not the numbers, is right in a
third of the cases. Take the residual connections out of the trained model, and its tokens are all alike after four
blocks: the logarithm of what tells them apart more than doubles with every block. What paths of each length know is in
dong2021/path_effectiveness, with the same models.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from depthscope.experiments.claim import Claim
from depthscope.experiments.dong_tasks import SIZES, SMALL, claims_of, draw_learning, whole_model
from depthscope.experiments.trainings import Trainings

PAPER, LEAST_HERE = 0.98, 0.95


@dataclass(frozen=True)
class Config(Trainings):
    """d, h: width and heads of the six blocks; train, test: sequences."""

    d: int = SIZES["sorting"]["d"]
    h: int = SIZES["sorting"]["h"]
    epochs: int = SIZES["sorting"]["epochs"]
    batch: int = SIZES["sorting"]["batch"]
    lr: float = SIZES["sorting"]["lr"]
    train: int = SIZES["sorting"]["train"]
    test: int = SIZES["sorting"]["test"]


SMOKE = Config(**SMALL["sorting"], trials=1, side_by_side=False)


def run(cfg: Config) -> dict[str, Tensor]:
    """Test accuracies (seeds,), validation accuracy on the way (3, looks), relative residuals (3, states)."""
    return whole_model("sorting", cfg)


def claims(numbers: dict[str, Tensor], cfg: Config) -> list[Claim]:
    accuracy, chance = numbers["accuracy"], numbers["chance"]
    return claims_of(
        numbers,
        cfg,
        (f"the whole model sorts: test accuracy (paper {PAPER})", accuracy.mean(), LEAST_HERE, 1.0, chance),
        ("above who knows the place alone: least over seeds", accuracy.min() - chance, 0.5, 1.0, 0.0),
    )


def draw(numbers: dict[str, Tensor], cfg: Config, figure: Any) -> None:
    lines = {"the paper's whole model": PAPER, "who knows the place alone": float(numbers["chance"])}
    draw_learning(figure, numbers, "sorting 8 numbers", lines)
