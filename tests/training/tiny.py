"""A task that is in memory at once: noise with a class-dependent stripe, 1 x 4 x 4, so that models of a few blocks learn it in seconds."""

import torch

from depthscope.training.build import Build
from depthscope.training.recipe import Recipe
from depthscope.training.tasks import ImageTask, Split, Task, task

BUILD = Build(depth=2, d=8, h=2, q=8)
TEXT = {"train": 400, "valid": 256, "test": 256, "segment": 6, "memory": 9, "epoch_tokens": 120}
RECIPE = Recipe(epochs=3, batch=16, lr=3e-3, log_every=4)  # 52 images: three whole batches and one of four


def stripes(count: int, seed: int) -> Split:
    noise = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=noise)
    images = 0.3 * torch.rand(count, 1, 4, 4, generator=noise)
    images[torch.arange(count), 0, labels] += 0.6
    return Split(images, labels)


def tiny_task(train: int = 52) -> ImageTask:
    return ImageTask(
        "stripes", stripes(train, 1), stripes(20, 2), stripes(21, 3), 4, 2, mean=torch.zeros(1), std=torch.ones(1)
    )


def tiny_text() -> Task:
    """Tokens that cannot be predicted, with a memory that is longer than a segment: 4 steps of 5 rows an epoch, 13 a pass."""
    return task("iid", **TEXT)
