"""Progress without plumbing: a loop is tracked, and whoever runs the experiment may listen."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
Listener = Callable[[int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """While this is open, tracked loops report (turns done, turns in all)."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(items: Iterable[T], total: int, *, done: int = 0) -> Iterator[T]:
    """The items of a loop that takes seconds; `total` turns in all, of which `done` came in loops before this one."""
    for turn, item in enumerate(items):
        tell(done + turn, total)
        yield item


def tell(done: int, total: int) -> None:
    """How far something is that is no loop of ours."""
    if (listener := _listener.get()) is not None:
        listener(done, total)
