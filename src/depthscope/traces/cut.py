"""Blocks that run without some of their parts: skips, feed-forward network, norms (Dong et al. 2021, section 4).

At a sum of the residual stream and a branch, the branch alone goes on (no skip) or the stream alone (no feed-forward
network); a norm gives back its input. What is left out is never computed as a result, so a scan that watches the model
sees what the model does. A block that is built otherwise is left whole, with the reason in `passage.odd`.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.look import Span
from depthscope.traces.stream import Follow, Passage, by_place, is_in_place
from depthscope.traces.tokens import version
from depthscope.traces.watch import LINEAR, SUMS

PARTS = ("attention_skip", "ffn_skip", "ffn", "norms")
JOINED_ONCE = "attention and feed-forward network join the stream in one sum"
SIDE_BY_SIDE = "the feed-forward network does not read the sum that attention has joined"
FURTHER_SUM = "a sum with the stream has no branch of its own (a third skip, a second network)"
SECOND_STREAM = "a branch joins a second stream too"
BEFORE_ATTENTION = "a branch joins the stream before attention"
OTHER_NORM = "a norm works on something that is not the stream"
ASKS = ("__get__", "size", "dim")  # a function that reads no numbers
WRITTEN = "the output of a norm is written into"  # which is now its input


@dataclass(eq=False)
class Cutting(Passage):
    """A block that runs without parts: which parts it has, and what is odd about its sums and its norms."""

    found: set[str] = field(default_factory=set)
    odd: str = ""
    odd_norm: str = ""
    linears: int = 0  # since the last sum with the stream
    past: list[Tensor] = field(default_factory=list)  # what the stream was
    branches: list[Tensor] = field(default_factory=list)  # that have joined it
    others: list[Tensor] = field(default_factory=list)  # tokens that are operands of sums without the stream
    handed: list[tuple[Tensor, int | Tensor]] = field(default_factory=list)  # inputs of removed norms, as they were
    is_read: bool = False  # whether anything but a sum has read the stream where it is now

    def blame(self, reason: str) -> None:
        self.odd = self.odd or reason

    def look_at_handed(self) -> None:
        """Before the stream may be written into by its own sum: has anybody else done so?"""
        if any(_changed(tokens, seen) for tokens, seen in self.handed):
            self.odd_norm = WRITTEN
        self.handed.clear()

    def moves_to(self, stream: Tensor) -> Tensor:
        self.past.append(self.stream)
        self.is_read = False
        return super().moves_to(stream)

    def why_not(self, parts: Collection[str]) -> str:
        """What hinders the removal of these parts; empty when nothing does."""
        reasons = [self.odd if {*parts} - {"norms"} else "", self.odd_norm if "norms" in parts else ""]
        missing = [part for part in PARTS if part in parts and part not in self.found]
        return next(filter(None, reasons), f"no {' and no '.join(missing)}" if missing else "")


class Cut(Follow):
    """While entered, the blocks run without `parts`. on_end is told of every block that ends, with its passage."""

    passage = Cutting
    norms_first = True

    def __init__(
        self, model: nn.Module, spans: list[Span], parts: Collection[str], on_end: Callable[[Cutting], None]
    ) -> None:
        super().__init__(model, spans, lambda block, site, tokens: tokens)
        self.parts, self.on_end = frozenset(parts), on_end

    def _ends(self, *_: Any) -> None:
        if self.open is not None:
            self.open.look_at_handed()
            self.on_end(self.open)
        super()._ends()

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        now, name = self.open, getattr(func, "__name__", "")
        if now is None:
            return super().__torch_function__(func, types, args, kwargs)
        now.linears += name in LINEAR
        if name in SUMS:
            self._sum(now, by_place(args, kwargs or {})[0][:2])
        elif name not in ASKS and any(map(now.is_stream, _flat((*args, *(kwargs or {}).values())))):
            now.is_read = True
        return super().__torch_function__(func, types, args, kwargs)

    def _reads(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self.open is not None and any(map(self.open.is_stream, (*args, *kwargs.values()))):
            self.open.is_read = True
        return super()._reads(module, args, kwargs)

    # sums

    def _sum(self, now: Cutting, operands: tuple) -> None:
        """A sum without the stream: remember its operands, and see whether they have been summed with it."""
        if any(map(now.is_stream, operands)):
            return
        tokens = [a for a in operands if isinstance(a, Tensor) and a.shape == now.stream.shape]
        if any(a is branch for a in tokens for branch in now.branches):
            now.blame(SECOND_STREAM)
        elif any(a is stream for a in tokens for stream in now.past):
            now.blame(FURTHER_SUM)
        now.others += tokens

    def _join(self, now: Cutting, func: Any, args: tuple, kwargs: dict, stands: list[bool]) -> Any:  # type: ignore[override]
        pair = args[:2]
        joins = stands.count(True) == 1 and all(isinstance(a, Tensor) for a in pair) and pair[0].shape == pair[1].shape
        now.look_at_handed()
        if not joins:
            now.blame(FURTHER_SUM if now.attended and all(stands) else "")
            return super()._join(now, func, args, kwargs, stands)
        branch = pair[stands.index(False)]
        kept = self._kept(now, branch, stands)
        now.linears = 0
        now.branches.append(branch)
        if kept is None:
            return super()._join(now, func, args, kwargs, stands)
        return self._summed(now, _alone(pair, kept, func, kwargs), in_place=False)

    def _kept(self, now: Cutting, branch: Tensor, stands: list[bool]) -> int | None:
        """Which operand of the sum goes on alone, 0 or 1; None: their sum does."""
        if any(branch is other for other in now.others):
            now.blame(SECOND_STREAM)
        elif not now.attended:
            now.blame(BEFORE_ATTENTION if now.linears else "")
        elif now.is_parallel:
            now.blame(JOINED_ONCE)
        elif now.sums > now.attentions or any(branch is stream for stream in now.past):
            now.blame(FURTHER_SUM)
        elif now.sums == now.attentions:
            now.found |= {"ffn", "ffn_skip"}
            now.blame("" if now.is_read else SIDE_BY_SIDE)
            if "ffn" in self.parts:
                return stands.index(True)
            return stands.index(False) if "ffn_skip" in self.parts else None
        elif now.heard <= now.sums:
            now.blame(BEFORE_ATTENTION)
        else:
            now.found.add("attention_skip")
            return stands.index(False) if "attention_skip" in self.parts else None
        return None

    # norms

    def _norm(self, func: Any, args: tuple, kwargs: dict) -> Any:
        return self._normed(args[0], args[0]) if self._removes(args[0]) else super()._norm(func, args, kwargs)

    def _normed(self, source: Any, result: Tensor) -> Tensor:
        now, before = self.open, self.open and self.open.stream
        if self._removes(source):
            now.handed.append((source, _as_it_is(source)))
            result = source.to(result.dtype)
        new = super()._normed(source, result)
        if now is not None and now.stream is not before:
            # taken for post-norm; a first block may be pre-norm and have no norm before attention, as ModernBERT's
            now.standing.append(before)
        return new

    def _removes(self, source: Any) -> bool:
        """Whether this norm is one of the block's, not one of queries and keys; those come after a matrix."""
        now = self.open
        if now is None or not isinstance(source, Tensor):
            return False
        inside = now.heard > now.sums or now.sums >= now.attentions  # of what attention gives, or a network
        if not inside and not now.is_stream(source):
            now.odd_norm = now.odd_norm if now.linears else OTHER_NORM
            return False
        now.found.add("norms")
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


def _alone(pair: tuple, kept: int, func: Any, kwargs: dict) -> Tensor:
    """One operand of the sum a + alpha b with its factor, in the place and the dtype of the sum."""
    alpha = kwargs.get("alpha", 1) if kept == 1 else 1
    new = pair[kept] if alpha == 1 else alpha * pair[kept]
    if is_in_place(func):
        return pair[0] if new is pair[0] else pair[0].copy_(new)
    return new.to(torch.result_type(*pair))
