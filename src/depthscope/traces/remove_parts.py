"""Blocks that run without some of their parts: skips, feed-forward network, norms (Dong et al. 2021, section 4).

At a sum of the residual stream and a branch, the branch alone goes on (no skip) or the stream alone (no attention, no
feed-forward network); a norm gives back its input. What is left out is never computed as a result, so a scan that
watches the model sees what the model does. A block that is built otherwise is left whole, and the reason is kept.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.traces.events import Join, Norm, Passage, StreamListener
from depthscope.traces.identity import version
from depthscope.traces.operations import Operation

PARTS = ("attention_skip", "ffn_skip", "attention", "ffn", "norms")
STREAM, BRANCH, BOTH = "stream", "branch", "both"  # what of a sum goes on
JOINED_ONCE = "attention and feed-forward network join the stream in one sum"
SIDE_BY_SIDE = "the feed-forward network does not read the sum that attention has joined"
FURTHER_SUM = "a sum with the stream has no branch of its own (a third skip, a second network)"
SECOND_STREAM = "a branch joins a second stream too"
BEFORE_ATTENTION = "a branch joins the stream before attention"
OTHER_NORM = "a norm works on something that is not the stream"
WRITTEN = "the output of a norm is written into"  # which is now its input


@dataclass(eq=False)
class Cutting:
    """A block that runs without parts: which parts it has, and what is odd about its sums and its norms."""

    found: set[str] = field(default_factory=set)
    odd: str = ""
    odd_norm: str = ""
    linears: int = 0  # since the last sum with the stream
    stream: list[Tensor] = field(default_factory=list)  # what it was, and is
    branches: list[Tensor] = field(default_factory=list)  # that have joined it
    others: list[Tensor] = field(default_factory=list)  # tokens that are operands of sums without the stream
    handed: list[tuple[Tensor, int | Tensor]] = field(default_factory=list)  # inputs of removed norms, as they were
    read: int = -1  # after how many moves of the stream anything but a sum has read it

    def blame(self, reason: str) -> None:
        self.odd = self.odd or reason

    def check_handed(self) -> None:
        """Before the stream may be written into by its own sum: has anybody else done so?"""
        if any(_changed(tokens, seen) for tokens, seen in self.handed):
            self.odd_norm = WRITTEN
        self.handed.clear()

    def why_not(self, parts: Collection[str]) -> str:
        """What hinders the removal of these parts; empty when nothing does."""
        reasons = [self.odd if {*parts} - {"norms"} else "", self.odd_norm if "norms" in parts else ""]
        missing = [part for part in PARTS if part in parts and part not in self.found]
        return next(filter(None, reasons), f"no {' and no '.join(missing)}" if missing else "")


class PartsRemover(StreamListener):
    """Blocks run without `parts`.

    on_end is told of every block that ends: its path, and what hindered the removal. on_removal is told of the block
    before a part of it is left out.
    """

    norms_first = True
    hears_everything = True

    def __init__(
        self, parts: Collection[str], on_end: Callable[[str, str], None], on_removal: Callable[[str], None]
    ) -> None:
        self.parts, self.on_end, self.on_removal = frozenset(parts), on_end, on_removal
        self.cut = Cutting()

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        self.cut = Cutting(stream=[tokens])
        return tokens

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        self.cut.check_handed()
        self.on_end(now.block, self.cut.why_not(self.parts))

    def before(self, now: Passage | None, op: Operation) -> Operation:
        cut = self.cut
        if now is None:
            return op
        if cut.stream[-1] is not now.stream:
            cut.stream.append(now.stream)
        cut.linears += op.role == "matrix"
        if op.role == "sum":
            self._sum(now, op.args[:2])
        elif any(map(now.is_stream, _flat((*op.args, *op.kwargs.values())))):
            cut.read = now.moves
        return op

    def reads(self, now: Passage) -> None:
        self.cut.read = now.moves

    # sums

    def _sum(self, now: Passage, operands: tuple) -> None:
        """A sum without the stream: remember its operands, and see whether they have been summed with it."""
        cut = self.cut
        if any(map(now.is_stream, operands)):
            return
        tokens = [a for a in operands if isinstance(a, Tensor) and a.shape == now.stream.shape]
        if any(a is branch for a in tokens for branch in cut.branches):
            cut.blame(SECOND_STREAM)
        elif any(a is stream for a in tokens for stream in cut.stream):
            cut.blame(FURTHER_SUM)
        cut.others += tokens

    def join(self, now: Passage, join: Join) -> Any:
        cut = self.cut
        cut.check_handed()
        if not join.is_of_branch:
            cut.blame(FURTHER_SUM if now.attended and all(join.stands) else "")
            return join.run()
        kept = self._kept(now, join)
        cut.linears = 0
        cut.branches.append(join.branch)
        if kept == BOTH:
            return join.run()
        self.on_removal(now.block)
        return join.stream_alone() if kept == STREAM else join.branch_alone()

    def _kept(self, now: Passage, join: Join) -> str:
        """Which operand of the sum goes on."""
        cut, branch = self.cut, join.branch
        if any(branch is other for other in cut.others):
            cut.blame(SECOND_STREAM)
        elif not now.attended:
            cut.blame(BEFORE_ATTENTION if cut.linears else "")
        elif now.is_parallel:
            cut.blame(JOINED_ONCE)
        elif now.sums > now.attentions or any(branch is stream for stream in cut.stream):
            cut.blame(FURTHER_SUM)
        elif now.sums == now.attentions:
            cut.found |= {"ffn", "ffn_skip"}
            cut.blame("" if cut.read == now.moves else SIDE_BY_SIDE)
            if "ffn" in self.parts:
                return STREAM
            return BRANCH if "ffn_skip" in self.parts else BOTH
        elif now.heard <= now.sums:
            cut.blame(BEFORE_ATTENTION)
        else:
            cut.found |= {"attention", "attention_skip"}
            if "attention" in self.parts:
                return STREAM
            return BRANCH if "attention_skip" in self.parts else BOTH
        return BOTH

    # norms

    def norm(self, now: Passage, norm: Norm) -> Tensor:
        if not self._removes(now, norm.source):
            return norm.run()
        self.on_removal(now.block)
        self.cut.handed.append((norm.source, _as_it_is(norm.source)))
        is_function = isinstance(norm.by, Operation)  # which is not even run, so that nobody else sees it
        return norm.source if is_function else norm.source.to(norm.run().dtype)

    def _removes(self, now: Passage, source: Any) -> bool:
        """Whether this norm is one of the block's, not one of queries and keys; those come after a matrix."""
        if not isinstance(source, Tensor):
            return False
        inside = now.heard > now.sums or now.sums >= now.attentions  # of what attention gives, or a network
        if not inside and not now.is_stream(source):
            self.cut.odd_norm = self.cut.odd_norm if self.cut.linears else OTHER_NORM
            return False
        self.cut.found.add("norms")
        return "norms" in self.parts


def _flat(values: tuple) -> Iterator[Any]:
    for value in values:
        yield from value if isinstance(value, tuple | list) else (value,)


def _as_it_is(tokens: Tensor) -> int | Tensor:
    """What tells later whether a tensor was written into: its version, or a copy where versions do not count."""
    return tokens.clone() if tokens.is_inference() else version(tokens)


def _changed(tokens: Tensor, seen: int | Tensor) -> bool:
    if isinstance(seen, Tensor):
        return not torch.equal(tokens.nan_to_num(), seen.nan_to_num())
    return version(tokens) != seen
