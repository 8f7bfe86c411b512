"""Which images a step takes and what is made of them: functions of seed and step alone, so nothing has to be stored."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from depthscope.training.recipe import Recipe


def seeded(*numbers: int) -> int:
    """One seed from several numbers; different numbers give different seeds for all we can tell."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number + 1) * 6_364_136_223_846_793_005 % 2**63
    return mixed


def order(count: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch goes through the images, a permutation (count,)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seeded(seed, epoch)))


class Batches:
    """The batches of a training split. batches.at(step) -> images (B, C, H, W), float and normalised, labels (B,)."""

    def __init__(self, task: Any, recipe: Recipe, device: torch.device) -> None:
        self.task, self.recipe, self.device = task, recipe, device
        self.change = _augmentation(recipe.augment, task.size)
        self._order = (-1, torch.empty(0))  # of the epoch that runs

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The whole batch, the same on every process: augmentation draws as it would draw on one."""
        split, batch = self.task.train, self.recipe.batch
        epoch, turn = divmod(step, self.recipe.epoch_steps(len(split.labels)))
        if self._order[0] != epoch:
            self._order = epoch, order(len(split.labels), self.recipe.seed, epoch)
        chosen = self._order[1][turn * batch : (turn + 1) * batch]
        images, labels = split.images[chosen].to(self.device), split.labels[chosen].to(self.device)
        if self.change is not None:
            torch.manual_seed(seeded(self.recipe.seed, step, 1))
            images = self.change(images.float() / 255 if images.dtype == torch.uint8 else images)
        return self.task.inputs(images), labels


def _augmentation(name: str, size: tuple[int, int, int]) -> Callable[[Tensor], Tensor] | None:
    if name == "none":
        return None
    from depthscope.training.augment import augmentation

    return augmentation(name, size)


def share(images: Tensor, labels: Tensor, index: int, parts: int) -> tuple[Tensor, Tensor, float]:
    """Part number `index` of a batch cut in `parts`, which need not be equal, and how much its sums weigh.

    A part without images is one image of weight 0: every process must take part when gradients are exchanged.
    """
    mine = slice(len(labels) * index // parts, len(labels) * (index + 1) // parts)
    if mine.start == mine.stop:
        return images[:1], labels[:1], 0.0
    return images[mine], labels[mine], 1.0
