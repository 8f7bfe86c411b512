"""What one batch gave: per sample values for every state, step and head, before they are averaged."""

import math
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import MaskError
from depthscope.metrics.chunk import Energies
from depthscope.scans.attention_reader import AttentionNumbers
from depthscope.scans.state_numbers import StateNumbers, float64
from depthscope.scans.together import heads_one_by_one
from depthscope.traces.blocks import Found
from depthscope.traces.head import vanished
from depthscope.traces.log import Attention, Call, Log
from depthscope.traces.steps import Anatomy

WHOLE = "block"  # the step that is the whole block
Ends = tuple[StateNumbers, StateNumbers, float]  # the states before and after a step, the squared norm of its bias


class Reading:
    """One batch's log, read as blocks, steps and heads."""

    def __init__(
        self,
        log: Log,
        found: Found,
        anatomies: list[Anatomy],
        ending: Call | None,
        mask: Tensor | None,
        gradients: dict[str, float],
        step_metrics: list[Any],
    ) -> None:
        self.log, self.blocks, self.pattern, self.stream = log, found.blocks, found.pattern, found.stream
        self.anatomies, self.ending, self.gradients = anatomies, ending, gradients
        self.step_metrics, self.mask = step_metrics, mask
        self.notes = list(found.notes)
        self.without_dropout: list[StateNumbers] | None = None  # the states of a second run, where dropout was on
        self.causal: bool | None = None  # where attention was looked at
        self.unseen = False  # whether tokens are mixed in a way that was not seen
        self.vanished = vanished(log, found.blocks[-1])
        if mask is not None and not self.blocks[0].source.numbers.masked:
            shape = tuple(self.blocks[0].source.shape)
            raise MaskError(
                f"mask must have one entry for each token; got {tuple(mask.shape)} for states {shape}. "
                "Give 1 for a token and 0 for padding, batch first."
            )
        self._note_ways()

    def _note_ways(self) -> None:
        if self.log.frames.assumed:
            which = "attention over whole sequences" if self.mixers() else "attention"
            self.notes.append(f"no {which} was seen, so the second-last axis was taken for the tokens")
        if not all(a.steps for a in self.anatomies):
            self.notes.append(
                "the residual stream inside the blocks could not be followed, so steps and norm placement are not known"
            )

    @property
    def depth(self) -> int:
        return len(self.blocks)

    def states(self) -> list[StateNumbers]:
        """The numbers at the input of block 1 and after every block."""
        return [self.blocks[0].source.numbers, *(b.result.numbers for b in self.blocks)]

    @property
    def samples(self) -> int:
        return len(self.blocks[0].source.numbers.common)

    def values(self, names: list[str]) -> Tensor:
        """State metrics, (names, depth + 1, samples)."""
        states = self.states()
        return self.by_sample([s.values[name] for name in names for s in states]).view(len(names), len(states), -1)

    def judged_states(self) -> list[StateNumbers]:
        """The states that the verdict rests on: without the noise of dropout."""
        return self.states() if self.without_dropout is None else self.without_dropout

    def judged(self, name: str) -> Tensor:
        """A state metric that the verdict rests on, (depth + 1, samples)."""
        return self.by_sample([s.values[name] for s in self.judged_states()])

    def by_sample(self, rows: list[list[float]]) -> Tensor:
        """One value a sample, (rows, samples): streams that were folded into the batch are averaged."""
        if len({len(row) for row in rows}) > 1:
            return torch.cat([self.by_sample([row]) for row in rows])
        values = float64(rows)
        return values if values.shape[-1] <= self.samples else values.reshape(len(rows), self.samples, -1).mean(-1)

    def step_names(self) -> list[str]:
        names: dict[str, None] = {}
        for anatomy in self.anatomies:
            names |= dict.fromkeys(step.name for step in anatomy.steps)
        return list(names)

    def moves(self) -> dict[tuple[str, str], Tensor]:
        """By step ("block" is all of it) and metric, each (depth, samples); NaN where a block lacks the step."""
        found: dict[str, dict[int, Ends]] = {
            WHOLE: {i: (block.source.numbers, block.result.numbers, 0.0) for i, block in enumerate(self.blocks)}
        }
        found |= {name: {} for name in self.step_names()}
        for i, anatomy in enumerate(self.anatomies):
            for step in anatomy.steps:
                found[step.name].setdefault(i, (step.source.numbers, step.result.numbers, step.bias))
        ends = [one for blocks in found.values() for one in blocks.values()]
        rows: dict[tuple[str, str], Tensor] = {}
        for quantity, values in self._moved(*zip(*ends, strict=True)).items():  # of all steps together: few calls
            parts = values.split([len(blocks) for blocks in found.values()])
            for (name, blocks), part in zip(found.items(), parts, strict=True):
                rows[name, quantity] = part
                if len(blocks) < self.depth:
                    rows[name, quantity] = part.new_full((self.depth, part.shape[-1]), math.nan)
                    rows[name, quantity][list(blocks)] = part
        return rows

    def _moved(
        self, sources: tuple[StateNumbers, ...], results: tuple[StateNumbers, ...], biases: tuple[float, ...]
    ) -> dict[str, Tensor]:
        """What some steps do, each (steps, samples)."""
        before, after = (
            Energies(self.by_sample([s.common for s in states]), self.by_sample([s.centred for s in states]))
            for states in (sources, results)
        )
        found = {"t_sim": after.common / after.total, "t_div": after.centred / after.total}
        found["gain"] = (after.common / after.centred).log() - (before.common / before.centred).log()  # of the log-odds
        tokens = self.by_sample([s.tokens for s in sources])
        found["bias_share"] = tokens * float64(biases)[:, None] / after.common  # of the common part
        for function in self.step_metrics:
            parts = function.facts.formula(before, after)
            parts = parts if isinstance(parts, tuple) else (parts,)
            found |= dict(zip(function.facts.parts, parts, strict=True))
        return found

    def attentions(self) -> list[AttentionNumbers | None]:
        """The first self-attention of each block, None where it has none."""
        return [a.numbers if a is not None else None for a in map(self.attention, range(self.depth))]

    def mixers(self) -> list[Attention]:
        """What was seen to mix tokens in the blocks."""
        return [a for a in self.log.attentions if any(block.attends(a) for block in self.blocks)]

    def attention(self, i: int) -> Attention | None:
        """The first attention of a block that mixes its own tokens."""
        inside = [a for a in self.log.attentions if self.blocks[i].attends(a) and a.kind != "cross"]
        inside = heads_one_by_one(inside, self.log.adds)
        if len(inside) > 1 and not any("in one block" in note for note in self.notes):
            self.notes.append(f"{len(inside)} self-attentions in one block: the first is reported")
        return inside[0] if inside else None

    def first_broken(self) -> tuple[int, str] | None:
        """Block (0 is the input) and step where a NaN or infinity first appears."""
        if not self.blocks[0].source.numbers.finite:
            return 0, "input"
        for i, (block, anatomy) in enumerate(zip(self.blocks, self.anatomies, strict=True), start=1):
            for step in anatomy.steps:
                if not step.result.numbers.finite:
                    return i, step.name
            if not block.result.numbers.finite:
                return i, WHOLE
        return None

    def weight_gradient(self, i: int) -> float:
        """Norm of the loss gradient with respect to all weights of block i."""
        inside = tuple(path + "." for path in self.blocks[i].paths)
        return math.sqrt(sum(v for name, v in self.gradients.items() if name.startswith(inside)))
