"""Which sequences a step takes, where every token has a label."""

from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.training.image_batches import Shuffled
from depthscope.training.recipe import Recipe


class LabelBatches(Shuffled):
    """batches.at(step) -> tokens (B, n) or points (B, n, channels), and their labels (B, n)."""

    def __init__(self, task: Any, recipe: Recipe, device: torch.device) -> None:
        super().__init__(task, recipe, device)
        if recipe.augment != "none":
            raise UsageError(
                f"{task.name}: only images can be augmented; got augment={recipe.augment!r}. Leave it out."
            )

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        tokens, labels = self.taken(step)
        return tokens, labels
