"""Compiled code stands aside while a model is watched: torch.compile would compile what the watcher does."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch

COMPILES = ("torch._dynamo", "torch.nn.attention.flex_attention")  # flex_attention compiles itself when it is called
_lock, _inside, _stance = Lock(), 0, ExitStack()


@contextmanager
def eagerly() -> Iterator[None]:
    """While entered, what torch.compile has made runs its own Python; nothing where nobody has compiled anything yet.

    A model that compiles its parts in the pass itself is not met by this; a scan sets the stance for it in any case.
    torch._dynamo is loaded by whoever compiles, and slow to load. The last one to leave puts back what was: those who
    watch the same pass do not leave in turn, and each would put back what it found.
    """
    if not any(name in sys.modules for name in COMPILES):
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _inside
    with _lock:
        if _inside == 0:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))
        _inside += change
        if _inside == 0:
            _stance.close()
