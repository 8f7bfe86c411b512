"""Beam search reorders the sequences in a cache: what is kept beside it is reordered too."""

import weakref
from dataclasses import replace
from typing import Any

from torch import Tensor

from depthscope.interventions.means import Running


class Reordering:
    """In the place of a cache's reorder_cache: tells the memories of all fixes whose sums go with the cache.

    It holds the cache weakly, so that neither keeps the other alive.
    """

    def __init__(self, cache: Any) -> None:
        self.cache = weakref.ref(cache)
        self.memories: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def tells(cls, cache: Any, memory: Any) -> None:
        """Let a memory know when this cache is reordered; a cache that has no such method is left alone."""
        if not callable(getattr(cache, "reorder_cache", None)):
            return
        if not isinstance(vars(cache).get("reorder_cache"), cls):
            cache.reorder_cache = cls(cache)
        cache.reorder_cache.memories.add(memory)

    def __call__(self, beam_idx: Tensor) -> Any:
        cache: Any = self.cache()
        held = [memory for memory in self.memories if memory.is_left(cache)]  # nobody else has changed it
        done = type(cache).reorder_cache(cache, beam_idx)
        for memory in held:
            memory.reorder(cache, beam_idx)
        return done

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reordering":
        """Of a copy of the cache, with which nothing is kept."""
        return Reordering(memo[id(self.cache())])

    def __reduce__(self) -> Any:
        return Reordering, (self.cache(),)


def reordered(running: Running, order: Tensor) -> Running:
    """Sum, count and tokens of the sequences in another order; a count that all share stays."""

    def taken(x: Tensor) -> Tensor:
        return x.index_select(0, order.to(x.device))

    count = running.count if running.count.ndim < 2 else taken(running.count)
    return replace(
        running,
        total=taken(running.total),
        count=count,
        tokens=None if running.tokens is None else taken(running.tokens),
    )
