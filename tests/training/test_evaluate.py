"""Loss and accuracy: sums over all labels in float64, whatever the model computes in."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from depthscope.training.evaluate import CHUNK, evaluate, training_part

ALONE: dict[str, Any] = {"device": torch.device("cpu"), "part": (0, 1), "total": lambda sums: sums, "final": True}


class Scores(nn.Module):
    """Gives what it is given."""

    def forward(self, scores: Tensor) -> Tensor:
        return scores


def test_a_small_loss_is_not_lost_beside_a_large_one() -> None:
    scores, labels = torch.zeros(CHUNK + 1, 2), torch.zeros(CHUNK + 1, dtype=torch.long)
    scores[0, 1] = large = 2.0**24  # float32 has no number between it and large + 2
    found = evaluate(Scores(), scores, labels, lambda taken: taken, **ALONE)
    assert found["loss"] * (CHUNK + 1) == pytest.approx(large + CHUNK * math.log(2), rel=1e-13)
    assert found["accuracy"] == CHUNK / (CHUNK + 1)


def test_parts_of_all_processes_add_up_and_the_mode_stays() -> None:
    scores, labels = torch.randn(2 * CHUNK + 3, 5), torch.randint(0, 5, (2 * CHUNK + 3,))
    model, parts = Scores().train(), list[Tensor]()
    whole = evaluate(model, scores, labels, lambda taken: taken, **ALONE)
    for index in range(3):
        look = ALONE | {"part": (index, 3), "total": lambda sums: parts.append(sums) or sums}
        evaluate(model, scores, labels, lambda taken: taken, **look)
    loss, hits = (sum(parts) / len(labels)).tolist()  # type: ignore[union-attr]
    assert model.training and (loss, hits) == pytest.approx((whole["loss"], whole["accuracy"]))
    assert whole["loss"] == pytest.approx(float(nn.functional.cross_entropy(scores.double(), labels)))


def test_as_many_training_examples_are_looked_at_as_validation_has() -> None:
    assert training_part(10, 5).tolist() == [0, 2, 4, 6, 8] and training_part(3, 9).tolist() == [0, 1, 2]
    assert training_part(4, 0).tolist() == [0]
