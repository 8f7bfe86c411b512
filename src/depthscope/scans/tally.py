"""The numbers of one batch, and of all batches so far: two tallies add up to that of their batches together."""

from dataclasses import dataclass
from operator import add
from typing import Any

import torch
from torch import nn

from depthscope.errors import UsageError
from depthscope.scans.heads import Heads, heads_of
from depthscope.scans.reading import Reading
from depthscope.scans.running import Running, each_with_spread, merged, of_batch
from depthscope.scans.sequences import Place, Sequences, sequences_of
from depthscope.scans.state_numbers import float64
from depthscope.traces.installed import fixes_in
from depthscope.traces.steps import placement_of
from depthscope.traces.streams import ALONE


@dataclass(frozen=True, eq=False)
class Tally:
    """What a scan keeps while batches go by. Tensors here are small: no activation and no log is kept.

    facts: fields of the Scan as the first batch shows them. place: of the first batch. told: notes on the first batch.
    """

    facts: dict[str, Any]
    place: Place
    samples: int
    tokens: Running
    causal: set[bool | None]
    notes: list[str]
    told: list[str]
    states: dict[str, Running]
    steps: dict[tuple[str, str], Running]  # (step, quantity)
    heads: Heads
    final_norm: dict[str, Running]
    gradients: dict[str, Running]
    without_dropout: Running | None
    broken: tuple[Place, tuple[int, str]] | None
    sequences: Sequences
    vanished: dict[str, float]  # who is given nothing, each with its smallest share

    def __add__(self, other: "Tally") -> "Tally":
        if self.place > other.place:
            return other + self
        depths = sorted({self.facts["depth"], other.facts["depth"]})
        if len(depths) > 1:
            raise UsageError(
                f"every batch must run through the same blocks; got depths {depths}. Scan them one by one."
            )
        both = self.final_norm.keys() & other.final_norm.keys()
        breaks = [broken for broken in (self.broken, other.broken) if broken is not None]
        silent = [one for one in (self.without_dropout, other.without_dropout) if one is not None]
        return Tally(
            self.facts,
            self.place,
            self.samples + other.samples,
            self.tokens + other.tokens,
            self.causal | other.causal,
            list(dict.fromkeys([*self.notes, *other.notes])),
            self.told,
            merged(self.states, other.states, add),
            merged(self.steps, other.steps, add),
            self.heads + other.heads,
            {name: self.final_norm[name] + other.final_norm[name] for name in self.final_norm if name in both},
            merged(self.gradients, other.gradients, add),
            silent[0] + silent[1] if len(silent) == 2 else next(iter(silent), None),
            min(breaks, default=None),
            self.sequences + other.sequences,
            merged(self.vanished, other.vanished, min),
        )


def tally_of(model: nn.Module, reading: Reading, place: Place = (0, 0)) -> Tally:
    """The tally of one batch, the `place[0]`-th of process `place[1]`."""
    heads = heads_of(reading)  # first: reading attentions may add a note
    broken = reading.first_broken()
    return Tally(
        facts=_facts(model, reading),
        place=place,
        samples=reading.samples,
        tokens=of_batch(float64(reading.blocks[0].source.numbers.tokens)),
        causal={reading.causal},
        notes=list(dict.fromkeys(reading.notes)),
        told=_told(model, reading),
        states=_states(reading),
        steps=_steps(reading),
        heads=heads,
        final_norm=_final_norm(reading),
        gradients=_gradients(reading),
        without_dropout=None if reading.without_dropout is None else of_batch(reading.judged("t_div")),
        broken=None if broken is None else (place, broken),
        sequences=sequences_of(reading, place),
        vanished=dict(reading.vanished),
    )


def _facts(model: nn.Module, reading: Reading) -> dict[str, Any]:
    source = reading.blocks[0].source
    return {
        "model": type(model).__name__,
        "depth": reading.depth,
        "tokens": source.tokens,
        "width": source.width,
        "dtype": source.dtype,
        "training": model.training,
        "blocks": reading.pattern,
        "block_names": [block.name for block in reading.blocks],
        "placement": placement_of(reading.anatomies),
        "residual_scale": max((anatomy.scale for anatomy in reading.anatomies), default=1.0),
        "token_axis": source.axis or 0,
        "remedies": [repr(fix) for fix in fixes_in(model) if _acts_in(fix, model, reading)],
        "stream": reading.stream,
        "sizes": _sizes(reading),
    }


def _acts_in(fix: Any, model: nn.Module, reading: Reading) -> bool:
    """Whether a change is of this stream: one of the blocks in which it acts is in, or is, a block of the stream."""
    if reading.stream == ALONE or not fix.blocks:
        return True
    own = {id(part) for block in reading.blocks for path in block.paths for part in model.get_submodule(path).modules()}
    return any(id(part) in own for path in fix.blocks for part in fix.model.get_submodule(path).modules())


def _sizes(reading: Reading) -> list[list[int]]:
    """Tokens and width of every state; nothing where all are the same."""
    ends = (reading.blocks[0].source, *(block.result for block in reading.blocks))
    sizes = [[state.tokens, state.width] for state in ends]
    return sizes if any(size != sizes[0] for size in sizes) else []


def _told(model: nn.Module, reading: Reading) -> list[str]:
    """What a reader should know of how a batch was measured."""
    notes = []
    if reading.without_dropout is not None:
        notes.append(
            "dropout was on, and its noise counts as diversity; so the verdict rests on a second run without dropout"
        )
    if reading.gradients and _share_weights(model, reading):
        notes.append("blocks share weights; the gradient norm of a shared weight is that of all its uses together")
    return notes


def _share_weights(model: nn.Module, reading: Reading) -> bool:
    """Whether a parameter is in more than one block."""
    own = [{id(p) for path in b.paths for p in model.get_submodule(path).parameters()} for b in reading.blocks]
    return len(set().union(*own)) < sum(map(len, own))


def _states(reading: Reading) -> dict[str, Running]:
    names = list(reading.states()[0].values)
    return dict(zip(names, each_with_spread(reading.values(names)), strict=True))


def _steps(reading: Reading) -> dict[tuple[str, str], Running]:
    return {step_and_quantity: of_batch(values) for step_and_quantity, values in reading.moves().items()}


def _final_norm(reading: Reading) -> dict[str, Running]:
    if reading.ending is None:
        return {}
    return {name: of_batch(float64(values)) for name, values in reading.ending.result.numbers.values.items()}  # type: ignore[union-attr]


def _gradients(reading: Reading) -> dict[str, Running]:
    """Norms of gradients belong to a batch as a whole: each batch counts once."""
    if not reading.gradients:
        return {}
    weights = torch.tensor([reading.weight_gradient(i) for i in range(reading.depth)], dtype=torch.float64)
    tokens = torch.tensor([state.gradient for state in reading.states()], dtype=torch.float64)
    return {"gradient_norm": of_batch(weights[:, None]), "token_gradient_norm": of_batch(tokens[:, None])}
