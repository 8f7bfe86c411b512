"""Which sequences a step takes, where every token has a label."""

from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.training.image_batches import order
from depthscope.training.recipe import Recipe


class LabelBatches:
    """batches.at(step) -> tokens (B, n) or points (B, n, channels), and their labels (B, n)."""

    def __init__(self, task: Any, recipe: Recipe, device: torch.device) -> None:
        self.task, self.recipe, self.device = task, recipe, device
        self._order = (-1, torch.empty(0))  # of the epoch that runs
        if recipe.augment != "none":
            raise UsageError(
                f"{task.name}: only images can be augmented; got augment={recipe.augment!r}. Leave it out."
            )

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        split, batch = self.task.train, self.recipe.batch
        epoch, turn = divmod(step, self.recipe.epoch_steps(len(split)))
        if self._order[0] != epoch:
            self._order = epoch, order(len(split), self.recipe.seed, epoch)
        chosen = self._order[1][turn * batch : (turn + 1) * batch]
        return split.tokens[chosen].to(self.device), split.labels[chosen].to(self.device)

    def fresh(self, step: int) -> bool:
        return True
