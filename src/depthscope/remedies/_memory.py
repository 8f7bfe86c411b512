"""What running means must know of the tokens in a key-value cache, so that generation goes on where it stopped."""

import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from depthscope.errors import UsageError
from depthscope.remedies._mean import Running

Sums = list[list[Running]]  # of one sequence: for every call of a remedy in a forward pass, its running sums
NAMES = ("past_key_values", "cache")  # how models call a cache among their arguments


class _Kept(NamedTuple):
    sums: Sums
    keys: Any  # a weak reference to the first layer's keys as the pass left them


class Memory:
    """The sums of every sequence that is being generated, kept as long as its cache lives."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()

    def recall(self, arguments: Mapping[str, Any], remedy: Any) -> Sums:
        """The sums of the tokens in the cache among the arguments of a pass; [] when it holds none."""
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

    def keep(self, arguments: Mapping[str, Any], output: Any, sums: Sums) -> None:
        """Remember the sums after a pass whose tokens went into a cache, given or made by the model."""
        parts = output if isinstance(output, tuple) else (getattr(output, "past_key_values", None),)
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


def _is_cache(value: Any) -> bool:
    """Whether this is a key-value cache of transformers."""
    return hasattr(value, "get_seq_length")


def _keys(cache: Any) -> Any:
    own = getattr(cache, "self_attention_cache", cache)  # of an encoder-decoder's two
    layers = getattr(own, "layers", None)
    return getattr(layers[0], "keys", None) if layers else None
