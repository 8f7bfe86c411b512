"""What a verdict rests on: for every sequence, how much still differs between its tokens, and in what way.

Several quantities, because each alone can be fooled: t_div by massive tokens, t_div_rest by outliers and by a channel
that all tokens share, all of them by tokens on one line or in a few points.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

DIVERSE = 0.9  # above this there is no likeness to explain
LOST = 0.01  # less than a hundredth of the signal differs between tokens
ALIKE = 0.1  # t_div below which it matters whether a shared channel is to blame
GONE = 1e-4  # however slowly tokens came there, whatever offset they share: below this they are lost
DISAGREE = 4.0  # a factor between two diversities that calls for an explanation: trimming alone makes 2
FAST = 1.02  # t_div shrinks by this factor a block or more: exponential, not the slow power law of pre-norm
ON_A_LINE = 1.05  # directions in which tokens differ: 2 % off the line
NARROW, WIDE = 1.6, 3.0  # directions: nearly a line, and clearly none
MANY = 5.0  # directions, or half of those that there are: nobody who differs in so many is lost in them
APART = 0.4  # t_div of the mean tokens of sequences: random models that lose their tokens have 0.2 and less
MOST = 7 / 8  # of the tokens in a few points
MAJORITY = 2 / 3  # of the tokens are the same, or in a few points: on the way
KEPT = 0.5  # of the distance from the mean at the start: an offset was added, and nothing was taken


@dataclass(frozen=True)
class Evidence:
    """Curves of every sequence, (depth + 1, samples), from a scan."""

    t_div: Tensor
    rest: Tensor  # t_div without massive tokens
    core: Tensor  # and without outliers and shared massive channels
    share: Tensor  # of tokens that are the same
    rank: Tensor
    size: Tensor
    points: Tensor
    tokens: Tensor
    apart: Tensor  # t_div of the mean tokens over the sequences: the same for all
    floor: float

    @cached_property
    def value(self) -> Tensor:
        """The diversity that counts: of the rest; of the core where outliers or a shared channel hide it."""
        return torch.where(self.by_core, self.core, self.rest)

    @property
    def by_core(self) -> Tensor:
        """In which sequences the core counts, (samples,)."""
        shared = (self.rest[-1] < ALIKE) & (self.core[-1] > DISAGREE * self.rest[-1])
        return self.hidden | shared

    @property
    def hidden(self) -> Tensor:
        """In which sequences outliers hide how alike the other tokens are at the end, (samples,)."""
        return self.core[-1] < self.rest[-1] / DISAGREE

    @property
    def same(self) -> Tensor:
        """In which states and sequences the tokens are the same up to 1 %."""
        return self.value < LOST

    @property
    def on_a_line(self) -> Tensor:
        """Tokens on one line, and no outlier with the others: two points are always on one."""
        return (self.rank < ON_A_LINE) & (self.tokens >= 4) & ~self.hidden

    @property
    def in_points(self) -> Tensor:
        """Tokens in a few points, where they did not enter so."""
        return (self.points >= MOST) & (self.points[0] < MOST) & (self.tokens >= 8) & ~self.hidden

    @property
    def offset(self) -> Tensor:
        """Sequences that are alike because something common was added to tokens that differ as before, (samples,)."""
        large = (self.size[-1] > KEPT * self.size[0]) | (self.value[-1] > KEPT**2 * self.value[0])
        many = ((self.tokens[-1] - 1) / 2).clamp(max=MANY)
        return self.same[-1] & large & (self.rank[-1] > many) & (self.value[-1] >= GONE)

    @property
    def lost(self) -> Tensor:
        """In which states and sequences tokens cannot be told apart."""
        return (self.same & ~self.offset) | self.on_a_line | self.in_points

    @property
    def pooled(self) -> int | None:
        """The block from which tokens take over the answer of their sequence: alike within it, apart between sequences.

        It lies in the second half. Who collapses does so at one pace, and has lost most of its diversity half way.
        Without a mean token (t_div above 0.9) there is no answer in it.
        """
        ends, depth = self.lost[-1], len(self.lost) - 1
        start = stays(self.lost[:, ends].sum(-1) >= min(len(ends) / 2, int(ends.sum()))) if ends.any() else None
        first, half, last = (float(self.value[block].median()) for block in (0, depth // 2, depth))
        sound = half > KEPT * first and GONE <= last < DIVERSE and float(self.apart[-1, 0]) >= APART
        return start if start is not None and 2 * start > depth and sound else None

    @property
    def majority(self) -> Tensor:
        """In which states and sequences most tokens are the same or in a few points, where they did not enter so."""
        known = torch.where(self.hidden, self.share, torch.maximum(self.share, self.points))
        return (known >= MAJORITY) & (known[0] < MAJORITY) & (self.tokens >= 8)

    @property
    def narrow(self) -> Tensor:
        """Sequences whose tokens came close to a line, (samples,)."""
        return (self.rank[-1] < NARROW) & (self.rank[0] > WIDE) & (self.tokens[-1] >= 16) & ~self.hidden

    def pace(self, end: int, chosen: Tensor) -> float:
        """The factor by which diversity shrinks in each block before `end`, over a quarter of the depth."""
        curve = self.value[:, chosen].mean(-1).log()
        start = max(0, end - max(1, (len(curve) - 1) // 4))
        if start == end:
            return 1.0
        slope = float(curve[start] - curve[end]) / (end - start)
        return 1.0 if math.isnan(slope) else math.exp(slope)

    def fastest(self, first: int, chosen: Tensor) -> float:
        """The largest pace at block `first` or later: who is slow at 1 % may be fast after it."""
        return max(self.pace(end, chosen) for end in range(first, len(self.value)))


def stays(holds: Tensor) -> int | None:
    """The first index from which all are true."""
    if not bool(holds[-1]):
        return None
    no = (~holds).nonzero()
    return int(no[-1]) + 1 if len(no) else 0


def evidence_of(scan: "Scan", floor: float) -> Evidence:
    """Of every sequence; files of format version 1 have the mean over sequences alone."""
    if scan.sequences:
        known = scan.sequences
    else:
        t_div = (scan.states["t_div"] if scan.without_dropout is None else scan.without_dropout)[:, None]
        known = dict.fromkeys(("t_div", "t_div_rest", "t_div_core"), t_div)
    nothing = torch.full_like(known["t_div"], math.nan)
    return Evidence(
        known["t_div"],
        known["t_div_rest"],
        known["t_div_core"],
        known.get("same_share", nothing),
        known.get("difference_rank", nothing),
        known.get("difference_size", nothing),
        known.get("few_points", nothing),
        known.get("tokens", torch.full_like(known["t_div"], scan.valid_tokens)),
        known.get("sequences_apart", nothing),
        floor,
    )
