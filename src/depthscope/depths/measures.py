"""What every block does to the stream, in one pass: how far it turns the tokens, and what its branches add.

Per token and block l, with x the block's input, y its output, and s the stream that a branch b joins:

    influence      1 - cos(x, y)                              Men et al. 2024
    angular        arccos(cos(x_k, x_m)) / pi, all k < m      Gromov et al. 2024, on all tokens
    contribution   |b| / |s| and cos(b, s)                    Csordas et al. 2025

A branch whose cosine is near 0 writes something new, above 0 it strengthens what is there, below 0 it erases. Means are
over the tokens that are no padding, and once more over the rest: those that are massive in no state (metrics/massive).
Memory: the L + 1 states of one batch, O(L n d), and never n x n.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.metrics.chunks import chunk_of
from depthscope.metrics.influence import cosines, units_of
from depthscope.metrics.massive import massive
from depthscope.traces.events import Join, Passage, StreamListener

KINDS = ("attention", "ffn")
PIECE = 128  # tokens at a time when all pairs of states are compared


@dataclass(frozen=True)
class Means:
    """The means of some tokens. influence (L,), angular (L+1, L+1), size and cosine (2, L) of attention and ffn."""

    influence: Tensor
    angular: Tensor
    size: Tensor
    cosine: Tensor
    count: float


@dataclass
class Sums:
    """Sums over tokens that grow batch by batch; branches a block does not have are NaN."""

    total: dict[str, Tensor] = field(default_factory=dict)
    count: float = 0.0

    def add(self, count: int, **values: Tensor) -> None:
        self.total = {name: self.total.get(name, 0.0) + value for name, value in values.items()}
        self.count += count

    def means(self) -> Means:
        return Means(**{name: value / max(self.count, 1.0) for name, value in self.total.items()}, count=self.count)


class Seen(StreamListener):
    """Keeps the states of a pass, and of every branch its size and direction beside the stream, token by token."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.states: list[Tensor] = []
        self.branches: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}  # kind, block -> sizes (N,), cosines (N,)
        self.joint: set[int] = set()  # blocks whose branches join in one sum
        self.last: Tensor | None = None

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.states.append(tokens.clone())
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        if tokens is not None and len(self.states) == len(self.subject.spans):
            self.last = tokens.clone()

    def join(self, now: Passage, join: Join) -> Any:
        if join.is_of_branch and now.attended:
            self._branch(now, join)
        return join.run()

    def _branch(self, now: Passage, join: Join) -> None:
        block = len(self.states) - 1
        if now.is_parallel:
            self.joint.add(block)
            return
        kind = "attention" if now.sums < now.attentions else "ffn"
        with torch._C.DisableTorchFunction():
            branch, stream = (self.rows(t) for t in (join.branch, join.pair[join.stands.index(True)]))
            size = join.branch_factor * branch.norm(dim=-1) / stream.norm(dim=-1)
            cosine = cosines(branch, stream)
        if (kind, block) in self.branches:  # a second attention of the block: sizes add up, the first tells the sign
            size, cosine = size + self.branches[kind, block][0], self.branches[kind, block][1]
        self.branches[kind, block] = size, cosine

    def rows(self, tokens: Tensor) -> Tensor:
        """(N, d) in float64: the tokens that are no padding."""
        return rows_of(self.subject, tokens)


def rows_of(subject: Subject, tokens: Tensor) -> Tensor:
    """The tokens (N, d) of a state that are no padding, in float64 on the CPU."""
    wide = subject.batch_first(tokens)
    return wide.flatten(0, 1) if subject.mask is None else wide[subject.mask]


def ordinary_rows(subject: Subject, states: list[Tensor]) -> Tensor:
    """Which of those tokens are massive in no state, (N,)."""
    found: Tensor | None = None
    valid = None if subject.mask is None else subject.mask[..., None]
    for state in states:
        first = state.transpose(0, 1) if subject.axis == 0 else state
        large = massive(chunk_of(first.detach().cpu(), valid))
        found = large if found is None else found | large
    assert found is not None
    return ~(found.flatten() if subject.mask is None else found[subject.mask])


def measure(subject: Subject, plain: Sums, rest: Sums) -> Seen:
    """Run the model once, and add what its blocks do to the sums over all tokens and over those not massive."""
    seen = Seen(subject)
    subject.listen(seen)
    assert seen.last is not None
    states = [*seen.states, seen.last]
    rows = torch.stack([units_of(rows_of(subject, state)) for state in states])  # (L+1, N, d), directions
    keep = ordinary_rows(subject, states)
    influence = torch.stack([(x - y).square().sum(-1) / 2 for x, y in pairwise(rows)])  # 1 - cos, (L, N)
    angular = _angular(rows, keep)
    none = torch.full((rows.shape[1],), torch.nan, dtype=torch.float64)
    depth = len(subject.spans)
    size, cosine = (
        torch.stack([torch.stack([seen.branches.get((k, b), (none, none))[i] for b in range(depth)]) for k in KINDS])
        for i in (0, 1)
    )
    for sums, chosen, at in ((plain, torch.ones_like(keep), 0), (rest, keep, 1)):
        sums.add(
            int(chosen.sum()),
            influence=influence[:, chosen].sum(-1),
            angular=angular[at],
            size=size[..., chosen].sum(-1),
            cosine=cosine[..., chosen].sum(-1),
        )
    return seen


def _angular(rows: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over tokens of the angles between all pairs of states (L+1, L+1): over all, and over those to keep."""
    states, count = rows.shape[:2]
    plain, rest = (torch.zeros(states, states, dtype=torch.float64) for _ in range(2))
    for begin in range(0, count, PIECE):
        piece, chosen = rows[:, begin : begin + PIECE].transpose(0, 1), keep[begin : begin + PIECE]
        found = (piece @ piece.mT).clamp(-1, 1).arccos() / math.pi  # (tokens, L+1, L+1)
        plain += found.sum(0)
        rest += found[chosen].sum(0)
    return plain.fill_diagonal_(0.0), rest.fill_diagonal_(0.0)
