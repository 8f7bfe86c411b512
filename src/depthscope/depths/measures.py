"""What every block does to the stream, in one pass: how far it turns the tokens, and what its branches add.

Per token and block l, with x the block's input, y its output, and s the stream that a branch b joins:

    influence      1 - cos(x, y)                              Men et al. 2024
    angular        arccos(cos(x_k, x_m)) / pi, all k < m      Gromov et al. 2024, on all tokens
    contribution   |b| / |s| and cos(b, s)                    Csordas et al. 2025

States are the inputs of all blocks and the output of the last: x_(l+1) is y_l where nothing happens between blocks.

A branch whose cosine is near 0 writes something new, above 0 it strengthens what is there, below 0 it erases. Means are
over the tokens that are no padding, and once more over the rest: those that are massive in no state (metrics/massive).
Memory: what blocks of one batch are given and give, O(L n d), and never n x n.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.errors import UsageError
from depthscope.metrics.chunks import chunk_of
from depthscope.metrics.influence import cosines
from depthscope.metrics.massive import massive
from depthscope.traces.events import Join, Passage, StreamListener

KINDS = ("attention", "ffn")
PIECE = 128  # tokens at a time when all pairs of states are compared
TINY = torch.finfo(torch.float64).tiny  # a token that is zero has the cosine 0 with others


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
        self.given: list[Tensor] = []
        self.gave: list[Tensor] = []
        self.branches: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}  # kind, block -> sizes (N,), cosines (N,)
        self.joint: set[int] = set()  # blocks whose branches join in one sum
        self.broken: set[int] = set()  # blocks that gave what is not finite

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        same = bool(self.gave) and torch.equal(tokens, self.gave[-1])
        self.given.append(self.gave[-1] if same else tokens.clone())
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        assert tokens is not None  # a subject's blocks give tokens back
        self.gave.append(tokens.clone())

    def join(self, now: Passage, join: Join) -> Any:
        if join.is_of_branch and now.attended:
            self._branch(now, join)
        return join.run()

    def _branch(self, now: Passage, join: Join) -> None:
        block = len(self.gave)
        if now.is_parallel:
            self.joint.add(block)
            return
        kind = "attention" if now.sums < now.attentions else "ffn"
        with torch._C.DisableTorchFunction():
            branch, stream = (self.rows(t) for t in (join.branch, join.pair[join.stands.index(True)]))
            branch *= join.branch_factor
            sizes = branch.norm(dim=-1), stream.norm(dim=-1)
            size = sizes[0] / sizes[1]
            cosine = (branch * stream).sum(-1) / (sizes[0] * sizes[1]).clamp(min=TINY)
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
    states = [*seen.given, seen.gave[-1]]
    rows = [rows_of(subject, state) for state in states]
    if not len(rows[0]):
        raise UsageError(
            f"depth: inputs must have a token that is no padding; got states {tuple(states[0].shape)}. Give some."
        )
    keep = ordinary_rows(subject, states)
    seen.broken = {at for at, row in enumerate(rows[1:]) if not bool(row.isfinite().all())}
    angular, influence = _turns(rows, keep)
    for at, (then, gave) in enumerate(zip(states[1:], seen.gave, strict=True)):
        if then is not gave:  # something happened between the block and the next
            influence[at] = 1 - cosines(rows[at], rows_of(subject, gave))
    none = torch.full((len(keep),), torch.nan, dtype=torch.float64)
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


def _turns(rows: list[Tensor], keep: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Angles between all pairs of states, summed over all tokens and over those to keep, (L+1, L+1) each; 1 - cos of
    every state and the next, token by token, (L, N)."""
    states, count = len(rows), len(keep)
    plain, rest = (torch.zeros(states, states, dtype=torch.float64) for _ in range(2))
    turned = []
    for begin in range(0, count, PIECE):
        Z = torch.stack([row[begin : begin + PIECE] for row in rows], 1)  # (tokens, L+1, d)
        dots = Z @ Z.mT
        sizes = dots.diagonal(dim1=-2, dim2=-1).sqrt()
        both = sizes[:, :, None] * sizes[:, None]
        zero = sizes == 0
        cos = (dots / both.clamp(min=TINY)).masked_fill(zero[:, :, None] & zero[:, None], 1.0).clamp(-1, 1)
        turned.append(1 - cos.diagonal(1, dim1=-2, dim2=-1))
        found = cos.arccos() / math.pi
        plain += found.sum(0)
        rest += found[keep[begin : begin + PIECE]].sum(0)
    return (plain.fill_diagonal_(0.0), rest.fill_diagonal_(0.0)), torch.cat(turned).mT
