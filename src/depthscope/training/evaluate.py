"""Loss and accuracy of a model on a split of images."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.training.batches import share

CHUNK = 256  # images at a time, over all processes


def training_part(task: Any) -> Tensor:
    """Indices into the training split, evenly spaced, as many as the validation split has: an equal look at both."""
    count = len(task.train.labels)
    return torch.arange(count)[:: max(1, count // max(1, len(task.valid.labels)))]


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Any, split: str, *, device: torch.device, part: tuple[int, int], total: Callable[..., Any]
) -> dict[str, float]:
    """{"loss", "accuracy"}: means over the images of a split ("train": a part of it), in float64.

    part: (index, number) of this process among all; total adds a tensor up over them.
    """
    images, labels = getattr(task, split).images, getattr(task, split).labels
    if split == "train":
        chosen = training_part(task)
        images, labels = images[chosen], labels[chosen]
    sums = torch.zeros(2, dtype=torch.float64)  # loss, hits; on the CPU, for some devices have no float64
    was_training = model.training
    model.eval()
    for start in range(0, len(labels), CHUNK):
        x, y, weight = share(images[start : start + CHUNK], labels[start : start + CHUNK], *part)
        scores = model(task.inputs(x.to(device))).cpu().double()
        sums += weight * torch.stack([F.cross_entropy(scores, y, reduction="sum"), (scores.argmax(-1) == y).sum()])
    model.train(was_training)
    loss, hits = (total(sums) / max(1, len(labels))).tolist()
    return {"loss": loss, "accuracy": hits}
