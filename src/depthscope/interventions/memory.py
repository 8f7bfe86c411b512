"""Running means over remembered tokens: a model keeps them in a cache (keys and values, states of recurrences) or in a
segment memory.

A cache stands for all earlier tokens: their sums are kept here as long as it lives, and generation goes on where it
stopped.
A segment memory (models.SegmentMemory) holds a window: the summands of its tokens are kept in it, in `means`.
"""

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, count
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from depthscope.errors import UsageError
from depthscope.interventions.means import Running
from depthscope.interventions.reordering import Reordering, reordered
from depthscope.traces.caches import cache_in, is_cache, is_filled, is_segment_memory, length_held, tensors_held
from depthscope.traces.installed import fixes_in

Sums = list[list[Running]]  # of one sequence: for every call of a remedy in a forward pass, its running sums
WINDOWS = ("mems",)  # arguments that hold the last tokens alone, as they entered the blocks


class _Kept(NamedTuple):
    sums: Sums
    left: tuple[Any, int | None]  # a weak reference to the first tensor in the cache, and its version, as left


class Memory:
    """The sums of every sequence that is being generated; name is what a fix calls its means in a segment memory.

    shared: whether the sequences are shared by a group of processes.
    """

    def __init__(self, name: str, shared: bool) -> None:
        self.name, self.shared = name, shared
        self.blocks = 0  # in which the remedy acts, once they are known
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()  # what stands for a cache -> _Kept

    def recall(self, given: tuple, arguments: Mapping[str, Any], remedy: Any) -> Sums | None:
        """The sums of the tokens in the cache or memory among the arguments of a pass; None when there are none.

        given: all arguments; a wrapper's *args have no names. arguments: those that have one.
        """
        if any(getattr(recall, "keep", 0) for value in given if isinstance(value, list) for recall in value):
            raise UsageError(
                f"{remedy} must count the tokens in the segment memory, which the language model holds and not "
                "its stack of blocks. Call fix_ on the language model."
            )
        segments = segments_in(given)
        if segments is not None:
            return self._of_segments(segments, remedy)
        if any(next(tensors_held(arguments.get(name)), None) is not None for name in WINDOWS):
            raise UsageError(
                f"{remedy} must see the whole sequence; got only a part of it, with {', '.join(WINDOWS)}. Give "
                "the whole text, and no memory."
            )
        if not continues(arguments):
            return None
        cache = cache_in(arguments)
        anchor = anchor_of(cache)
        kept = None if anchor is None else self._kept.get(anchor)
        if kept is None or not any(kept.sums):
            raise UsageError(
                f"{remedy} must see the whole sequence; a part of it is in a {_called(cache)}"
                f"{'' if kept else ' that was filled without it'}. Pass use_cache=False."
            )
        if not self.is_left(cache):
            raise UsageError(
                f"{remedy} keeps sums beside the {_called(cache)}; the cache was reordered, cropped or moved since, by "
                "hand or by assisted generation. Pass use_cache=False, or generate without an assistant."
            )
        return kept.sums

    def is_left(self, cache: Any) -> bool:
        """Whether a cache is as the last pass has left it."""
        kept = self._kept.get(anchor_of(cache))
        first, version = _left(cache) if kept is not None else (None, None)
        return kept is not None and first is not None and kept.left[0]() is first() and kept.left[1] == version

    def reorder(self, cache: Any, order: Tensor) -> None:
        """The sequences of a cache are in another order now, order (B,)."""
        kept = self._kept[cache]
        self._kept[cache] = _Kept([[reordered(one, order) for one in call] for call in kept.sums], _left(cache))

    def _of_segments(self, memory: Any, remedy: Any) -> Sums:
        self._refuse_sharing()
        if getattr(remedy, "whole", True) or remedy.at == "attn":
            raise UsageError(
                f"{remedy} must see the whole sequence; a part of it is in the segment memory. Set model.memory = 0."
            )
        calls = memory.means.get(self.name)
        if calls is None or len(calls) not in (0, self.blocks):
            raise UsageError(
                f"{remedy} must count the tokens in the segment memory, which was filled "
                f"{'without it' if calls is None else 'with it in other blocks'}. Start anew with memory=None."
            )
        return [[Running.over(tokens) for tokens in call] for call in calls or [[]] * self.blocks]

    def _refuse_sharing(self) -> None:
        if self.shared:
            raise UsageError(
                "the sequences that a group shares must be in the group with all their tokens; some are in a "
                "segment memory. Set model.memory = 0, or leave group= out."
            )

    @contextmanager
    def taken(self, given: tuple) -> Iterator[None]:
        """For the time of a pass, tell the segment memory among its arguments that this fix is there."""
        memory = segments_in(given)
        names = set() if memory is None else memory.taken
        names.add(self.name)
        try:
            yield
        finally:
            names.discard(self.name)

    def keep(self, arguments: Mapping[str, Any], output: Any, sums: Sums) -> Any:
        """Remember the sums after a pass whose tokens went into a cache or memory, given or made by the model.

        Returns the cache, or None where there is none.
        """
        parts = output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
        for memory in filter(is_segment_memory, parts):
            self._refuse_sharing()
            memory.means[self.name] = [[_summands(mean, memory) for mean in call] for call in sums]
        cache = _returned(output)
        anchor = anchor_of(cache_in(arguments) if cache is None else cache)
        if anchor is None:
            return None
        self._kept[anchor] = _Kept(sums, _left(cache_in(arguments) if cache is None else cache))
        if is_cache(anchor):
            Reordering.tells(anchor, self)
        return anchor


def continues(arguments: Mapping[str, Any]) -> bool:
    """Whether a pass goes on after tokens that are in a cache among its arguments."""
    cache = cache_in(arguments)
    return cache is not None and (not is_cache(cache) or is_filled(cache))


def anchor_of(cache: Any) -> Any:
    """What a cache is known by from pass to pass: itself, or the first tensor of a list, which is made anew each time.

    None for an empty one, and for a record of which nobody knows how it goes on.
    """
    first = next(tensors_held(cache), None) if is_cache(cache) or isinstance(cache, list | tuple) else None
    return None if first is None else cache if is_cache(cache) else first


def _called(cache: Any) -> str:
    """What users call it."""
    is_state = isinstance(cache, list) or (is_cache(cache) and not hasattr(cache, "get_seq_length"))
    return "recurrent state" if is_state else "key-value cache"


def _left(cache: Any) -> tuple[Any, int | None]:
    """By which a change of a cache from outside is told: whoever reorders or crops it makes or writes other tensors."""
    first = next(tensors_held(cache))
    return weakref.ref(first), None if first.is_inference() else first._version


def _returned(output: Any) -> Any:
    """The cache that a pass gave back, by its name or as a part of a tuple."""
    if isinstance(output, tuple):
        return next(filter(is_cache, output), None)
    named = output if isinstance(output, Mapping) else vars(output) if hasattr(output, "__dict__") else {}
    return cache_in(named)


def tokens_in(arguments: Mapping[str, Any]) -> int:
    """How many tokens the cache among the arguments says it holds; states of recurrences do not say."""
    cache = cache_in(arguments)
    return 0 if cache is None else length_held(cache)


def name_in(model: nn.Module, remedy: str, at: str) -> str:
    """What a new fix calls its means in a segment memory: the same again when a model is built and fixed anew."""
    memories = [fix.memory for fix in fixes_in(model) if hasattr(fix, "memory")]
    taken, name = {memory.name for memory in memories}, f"{remedy}@{at}"
    return next(n for n in chain([name], (f"{name}#{i}" for i in count(2))) if n not in taken)


def most_remembered(model: nn.Module) -> int:
    """The most tokens that any part of a model may keep in a segment memory: the largest number called `memory`.

    A bound. The model may be wrapped, and a wrapper may call something else so; `keep` cuts to what came back.
    """
    owners = (m for m in model.modules() if "memory" in vars(m) or hasattr(type(m), "memory"))
    return max((m.memory for m in owners if isinstance(m.memory, int)), default=0)


def _summands(mean: Running, memory: Any) -> Tensor:
    """The summands (B, M, w) of a mean for the tokens that the memory holds."""
    if mean.tokens is None or len(mean.tokens) != memory.batch or mean.tokens.shape[-2] < memory.length:
        got = "none" if mean.tokens is None else f"{len(mean.tokens)} x {mean.tokens.shape[-2]}"
        raise UsageError(
            f"means must be over the {memory.batch} x {memory.length} tokens of the segment memory that "
            f"the model returned; the remedy saw {got}. Keep the most tokens to remember as a number `memory` of the "
            "module that makes it, or set it to 0."
        )
    tokens = mean.tokens[:, mean.tokens.shape[-2] - memory.length :]
    return tokens if tokens.shape == mean.tokens.shape else tokens.clone()


def segments_in(given: tuple) -> Any:
    """The segment memory among the arguments of a pass, or None."""
    return next(filter(is_segment_memory, given), None)


def without_segments(args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a pass at the start of a text, where there are as many queries as keys."""
    given = {name: None if is_segment_memory(value) else value for name, value in kwargs.items()}
    return tuple(None if is_segment_memory(value) else value for value in args), given
