"""Loss and accuracy of a model that chooses among classes, for whole images or token by token."""

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.training.batches import share

CHUNK = 256  # examples at a time, over all processes


class Look(TypedDict):
    """How a split is looked at. part: (index, number) of this process among all; total adds a tensor up over them;
    final: at the end, where what takes long is measured too."""

    device: torch.device
    part: tuple[int, int]
    total: Callable[..., Any]
    final: bool


def training_part(count: int, like: int) -> Tensor:
    """Indices into `count` training examples, evenly spaced, as many as there are for validation: an equal look."""
    return torch.arange(count)[:: max(1, count // max(1, like))]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Tensor,
    labels: Tensor,
    inputs: Callable[[Tensor], Tensor],
    **look: Unpack[Look],
) -> dict[str, float]:
    """{"loss", "accuracy"}: means over labels (N,) of images or (N, n) of tokens, in float64.

    inputs makes what the model takes of examples.
    """
    sums = torch.zeros(2, dtype=torch.float64)  # loss, hits; on the CPU, for some devices have no float64
    was_training = model.training
    model.eval()
    for start in range(0, len(labels), CHUNK):
        x, y, weight = share(examples[start : start + CHUNK], labels[start : start + CHUNK], *look["part"])
        scores, y = model(inputs(x.to(look["device"]))).cpu().double().flatten(0, -2), y.flatten()
        sums += weight * torch.stack([F.cross_entropy(scores, y, reduction="sum"), (scores.argmax(-1) == y).sum()])
    model.train(was_training)
    loss, hits = (look["total"](sums) / max(1, labels.numel())).tolist()
    return {"loss": loss, "accuracy": hits}
