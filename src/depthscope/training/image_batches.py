"""Which images a step takes and what is made of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from depthscope.training.batches import seeded
from depthscope.training.recipe import Recipe


def order(count: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch goes through the images, a permutation (count,)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seeded(seed, epoch)))


class Shuffled:
    """Batches of examples with labels; every epoch goes through all of them in an order of its own."""

    def __init__(self, task: Any, recipe: Recipe, device: torch.device) -> None:
        self.task, self.recipe, self.device = task, recipe, device
        self._order = (-1, torch.empty(0))  # of the epoch that runs

    def taken(self, step: int) -> list[Tensor]:
        """What a step takes of each tensor of the training split, the same on every process."""
        split, batch = self.task.train, self.recipe.batch
        epoch, turn = divmod(step, self.recipe.epoch_steps(len(split)))
        if self._order[0] != epoch:
            self._order = epoch, order(len(split), self.recipe.seed, epoch)
        chosen = self._order[1][turn * batch : (turn + 1) * batch]
        return [tensor[chosen].to(self.device) for tensor in split.tensors]

    def fresh(self, step: int) -> bool:
        return True


class ImageBatches(Shuffled):
    """batches.at(step) -> images (B, C, H, W), float and normalised, labels (B,)."""

    def __init__(self, task: Any, recipe: Recipe, device: torch.device) -> None:
        super().__init__(task, recipe, device)
        self.change = _augmentation(recipe.augment, task.size)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The whole batch, the same on every process: augmentation draws as it would draw on one."""
        images, labels = self.taken(step)
        if self.change is not None:
            torch.manual_seed(seeded(self.recipe.seed, step, 1))
            images = self.change(images.float() / 255 if images.dtype == torch.uint8 else images)
        return self.task.inputs(images), labels


def _augmentation(name: str, size: tuple[int, int, int]) -> Callable[[Tensor], Tensor] | None:
    if name == "none":
        return None
    from depthscope.training.augment import augmentation

    return augmentation(name, size)
