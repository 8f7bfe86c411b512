"""What running means must know of tokens that attention remembers, in a key-value cache or in a segment memory.

A cache holds all earlier tokens: their sums are kept here as long as it lives, and generation goes on where it stopped.
A segment memory (models.SegmentMemory) holds a window: the summands of its tokens are kept in it, in `means`.
"""

import weakref
from collections.abc import Mapping
from itertools import chain, count
from typing import Any, NamedTuple

from torch import nn

from depthscope.errors import UsageError
from depthscope.remedies._mean import Running
from depthscope.traces.known import fixes_in

Sums = list[list[Running]]  # of one sequence: for every call of a remedy in a forward pass, its running sums
NAMES = ("past_key_values", "cache")  # how models call a cache among their arguments


class _Kept(NamedTuple):
    sums: Sums
    keys: Any  # a weak reference to the first layer's keys as the pass left them


class Memory:
    """The sums of every sequence that is being generated; name is what a fix calls its means in a segment memory."""

    def __init__(self, name: str, blocks: int) -> None:
        self.name, self.blocks = name, blocks
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()

    def recall(self, arguments: Mapping[str, Any], remedy: Any) -> Sums:
        """The sums of the tokens in the cache or memory among the arguments of a pass; [] when there are none."""
        if any(recall.keep for recall in arguments.get("recalls") or ()):
            raise UsageError(
                f"fix_: {remedy} must count the tokens in the segment memory, which the language model holds and not "
                "its stack of blocks. Call fix_ on the language model."
            )
        segments = next(filter(is_segment_memory, arguments.values()), None)
        if segments is not None:
            return self._of_segments(segments, remedy)
        cache = cache_in(arguments)
        if cache is None or (_is_cache(cache) and not tokens_in(arguments)):
            return []
        kept = self._kept.get(cache) if _is_cache(cache) else None
        if kept is None or not any(kept.sums):
            raise UsageError(
                f"fix_: {remedy} must see the whole sequence; a part of it is in a key-value cache"
                f"{'' if kept else ' that was filled without it'}. Pass use_cache=False."
            )
        if kept.keys() is not _keys(cache):  # by identity: every change but an update makes new keys
            raise UsageError(
                f"fix_: {remedy} keeps sums beside the key-value cache; the cache was reordered, cropped or moved "
                "since (beam search, assisted generation). Pass use_cache=False, or generate without beams."
            )
        return kept.sums

    def _of_segments(self, memory: Any, remedy: Any) -> Sums:
        if getattr(remedy, "whole", True) or remedy.at == "attn":
            raise UsageError(
                f"fix_: {remedy} must see the whole sequence; a part of it is in the segment memory. "
                "Set model.memory = 0."
            )
        calls = memory.means.get(self.name)
        if calls is None or len(calls) not in (0, self.blocks):
            raise UsageError(
                f"fix_: {remedy} must count the tokens in the segment memory, which was filled "
                f"{'without it' if calls is None else 'with it in other blocks'}. Start anew with memory=None."
            )
        return [[Running.over(tokens) for tokens in call] for call in calls]

    def keep(self, arguments: Mapping[str, Any], output: Any, sums: Sums) -> None:
        """Remember the sums after a pass whose tokens went into a cache or memory, given or made by the model."""
        parts = output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
        for memory in filter(is_segment_memory, parts):
            memory.means[self.name] = [[mean.tokens for mean in call] for call in sums]
        cache = next((c for c in (arguments.get("past_key_values"), *parts) if _is_cache(c)), None)
        keys = None if cache is None else _keys(cache)
        if keys is not None:
            self._kept[cache] = _Kept(sums, weakref.ref(keys))


def cache_in(arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a pass, or None."""
    return next((arguments[name] for name in NAMES if arguments.get(name) is not None), None)


def tokens_in(arguments: Mapping[str, Any]) -> int:
    """How many tokens the cache among the arguments holds."""
    cache = cache_in(arguments)
    return int(cache.get_seq_length()) if _is_cache(cache) else 0


def name_in(model: nn.Module, remedy: str, at: str) -> str:
    """What a new fix calls its means in a segment memory: the same again when a model is built and fixed anew."""
    taken, name = {fix._memory.name for fix in fixes_in(model)}, f"{remedy}@{at}"
    return next(n for n in chain([name], (f"{name}#{i}" for i in count(2))) if n not in taken)


def window_of(model: Any) -> int | None:
    """How many tokens a model with segment memory remembers; None for other models."""
    memory = getattr(model, "memory", None)
    return memory if isinstance(memory, int) else None


def is_segment_memory(value: Any) -> bool:
    """Whether this is a models.SegmentMemory, which cannot be imported from here."""
    return hasattr(value, "means") and hasattr(value, "length")


def without_segments(args: tuple, kwargs: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The arguments of a pass at the start of a text, where there are as many queries as keys."""
    given = {name: None if is_segment_memory(value) else value for name, value in kwargs.items()}
    return tuple(None if is_segment_memory(value) else value for value in args), given


def _is_cache(value: Any) -> bool:
    """Whether this is a key-value cache of transformers."""
    return hasattr(value, "get_seq_length")


def _keys(cache: Any) -> Any:
    own = getattr(cache, "self_attention_cache", cache)  # of an encoder-decoder's two
    layers = getattr(own, "layers", None)
    return getattr(layers[0], "keys", None) if layers else None
