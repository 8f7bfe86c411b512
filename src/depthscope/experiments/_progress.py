"""Progress without plumbing: a loop is tracked, and whoever runs the experiment may listen."""

from collections.abc import Callable, Iterator, Sequence
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


def track(turns: Sequence[T]) -> Iterator[T]:
    """The items of a loop that takes seconds."""
    listener = _listener.get()
    for done, item in enumerate(turns):
        if listener is not None:
            listener(done, len(turns))
        yield item
