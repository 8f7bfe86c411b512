"""A model, one batch and one residual stream: surveyed once, then listened to as often as needed."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.one_shape import check_entered, check_mask, check_shapes, check_tokens
from depthscope.circuits.wide import wide
from depthscope.traces.entry import enter, run_model
from depthscope.traces.events import StreamListener
from depthscope.traces.follower import following
from depthscope.traces.inputs import Batch
from depthscope.traces.spans import Span
from depthscope.traces.survey import Surveyed, evaluated
from depthscope.traces.untouched import untouched


@dataclass(frozen=True)
class Subject:
    """The bare model, the batch, and what a quiet pass showed of the blocks of one stream."""

    model: nn.Module
    batch: Batch
    stream: Surveyed
    others: tuple[str, ...] = ()  # the names of the other streams
    notes: tuple[str, ...] = ()  # on the way in

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def spans(self) -> list[Span]:
        return self.stream.spans

    @property
    def axis(self) -> int:
        """Along which axis the tokens lie, 0 or 1."""
        return self.stream.axis

    @property
    def mask(self) -> Tensor | None:
        """(B, n), True for tokens, beside the numbers that were noted; None for all."""
        return None if self.batch.mask is None else self.batch.mask.cpu()

    def run(self) -> None:
        """One forward pass with dropout off and without gradients, of which no trace is left."""
        with untouched(self.model), evaluated(self.model), torch.no_grad():
            run_model(self.model, lambda: self.batch.run(self.model))

    def listen(self, listener: StreamListener) -> None:
        """One such pass, in which the listener hears what happens in the blocks."""
        with following(self.model, self.spans, listener):
            self.run()

    def batch_first(self, tokens: Tensor) -> Tensor:
        """(B, n, d), as circuits keep numbers."""
        first = tokens.transpose(0, 1) if self.axis == 0 else tokens
        return wide(first)


def subjects_of(
    model: nn.Module,
    inputs: Any,
    blocks: str | Iterable[str] | None = None,
    mask: Any = None,
    stream: str | None = None,
) -> Iterator[Subject]:
    """Every batch of the inputs, with the stream of that name, or that with most blocks; its states are (B, n, d)."""
    entry = enter(model, inputs, blocks, mask, stream)
    for batch in entry.batches():
        found = replace(entry, stream=None).survey(entry.lasting(batch))
        first = found.only(stream).streams[0]
        others = tuple(one.name for one in found.streams if one is not first)
        subject = Subject(entry.model, batch, first, others, tuple(entry.notes))
        check_entered(subject)
        check_tokens(subject)
        shape = check_shapes(subject)
        padded = entry.padded(batch, first)
        yield replace(subject, batch=replace(padded, mask=check_mask(padded.mask, shape)))


def subject_of(
    model: nn.Module,
    inputs: Any,
    blocks: str | Iterable[str] | None = None,
    mask: Any = None,
    stream: str | None = None,
) -> Subject:
    """The same of the first batch alone."""
    return next(subjects_of(model, inputs, blocks, mask, stream))
