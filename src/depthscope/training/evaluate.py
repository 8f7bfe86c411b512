"""Loss and accuracy of a model that chooses among classes, for whole images or token by token."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.training.batches import share

CHUNK = 256  # examples at a time, over all processes


def training_part(count: int, like: int) -> Tensor:
    """Indices into `count` training examples, evenly spaced, as many as there are for validation: an equal look."""
    return torch.arange(count)[:: max(1, count // max(1, like))]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    examples: Tensor,
    labels: Tensor,
    *,
    inputs: Callable[[Tensor], Tensor],
    device: torch.device,
    part: tuple[int, int],
    total: Callable[..., Any],
) -> dict[str, float]:
    """{"loss", "accuracy"}: means over labels (N,) of images or (N, n) of tokens, in float64.

    inputs makes what the model takes of examples. part: (index, number) of this process among all; total adds a tensor
    up over them.
    """
    sums = torch.zeros(2, dtype=torch.float64)  # loss, hits; on the CPU, for some devices have no float64
    was_training = model.training
    model.eval()
    for start in range(0, len(labels), CHUNK):
        x, y, weight = share(examples[start : start + CHUNK], labels[start : start + CHUNK], *part)
        scores, y = model(inputs(x.to(device))).cpu().double().flatten(0, -2), y.flatten()
        sums += weight * torch.stack([F.cross_entropy(scores, y, reduction="sum"), (scores.argmax(-1) == y).sum()])
    model.train(was_training)
    loss, hits = (total(sums) / max(1, labels.numel())).tolist()
    return {"loss": loss, "accuracy": hits}
