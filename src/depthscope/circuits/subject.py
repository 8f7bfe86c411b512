"""A model and one batch that several passes look at: surveyed once, then listened to as often as needed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.entry import enter, run_model
from depthscope.traces.events import StreamListener
from depthscope.traces.follower import following
from depthscope.traces.inputs import Batch
from depthscope.traces.survey import Survey, evaluated
from depthscope.traces.untouched import untouched


@dataclass(frozen=True)
class Subject:
    """The bare model, the batch, and what a quiet pass showed of its blocks and axes."""

    model: nn.Module
    batch: Batch
    survey: Survey
    notes: tuple[str, ...] = ()  # on the way in

    @property
    def name(self) -> str:
        return type(self.model).__name__

    def run(self) -> None:
        """One forward pass with dropout off and without gradients, of which no trace is left."""
        with untouched(self.model), evaluated(self.model), torch.no_grad():
            run_model(self.model, lambda: self.batch.run(self.model))

    def listen(self, listener: StreamListener) -> None:
        """One such pass, in which the listener hears what happens in the blocks."""
        with following(self.model, self.survey.spans, listener):
            self.run()

    def batch_first(self, tokens: Tensor) -> Tensor:
        """(B, n, d) in float64, a copy: models write in place."""
        first = tokens.transpose(0, 1) if self.survey.axis == 0 else tokens
        return first.detach().to(torch.float64, copy=True)


def subject_of(model: nn.Module, inputs: Any, blocks: str | Iterable[str] | None = None, mask: Any = None) -> Subject:
    """The first batch of the inputs, and what a quiet pass shows of the model."""
    entry = enter(model, inputs, blocks, mask)
    batch = entry.first()
    found = entry.survey(batch)
    return Subject(entry.model, entry.padded(batch, found.axis), found, tuple(entry.notes))
