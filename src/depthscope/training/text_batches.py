"""Which tokens a step takes: rows that go on where they were left, so that a memory means something."""

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.training.batches import seeded
from depthscope.training.recipe import Recipe


class TextBatches:
    """batches.at(step) -> tokens (B, n) and the tokens that follow them (B, n).

    The text is cut into B rows, one for each sequence of the batch; step after step takes the next n tokens of every
    row. At the end all rows begin anew, each pass from another place in the text, drawn from seed and pass.
    """

    def __init__(self, ids: Tensor, segment: int, recipe: Recipe, device: torch.device) -> None:
        self.ids, self.segment, self.recipe, self.device = ids, segment, recipe, device
        self.steps = (
            len(ids) // recipe.batch - 1
        ) // segment  # of one pass; each row has one more token, the last target
        if self.steps < 1:
            raise UsageError(
                f"text: {recipe.batch} rows of {segment} tokens and one to follow must fit into the training split; it "
                f"has {len(ids)} tokens. Give more text, a smaller batch or a shorter segment."
            )
        if recipe.augment != "none":
            raise UsageError(f"text: only images can be augmented; got augment={recipe.augment!r}. Leave it out.")

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        turn, place = divmod(step, self.steps)
        rows = self._rows(turn)[:, place * self.segment : (place + 1) * self.segment + 1].to(self.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def fresh(self, step: int) -> bool:
        return step % self.steps == 0

    def _rows(self, turn: int) -> Tensor:
        """The rows of one pass, (B, length), a view."""
        batch = self.recipe.batch
        length = self.steps * self.segment + 1
        spare = len(self.ids) - batch * length
        drawn = torch.Generator().manual_seed(seeded(self.recipe.seed, turn))
        start = int(torch.randint(spare + 1, (), generator=drawn))
        return self.ids[start : start + batch * length].view(batch, length)
