"""Tensors that are recognised again: by identity, as long as nobody has written into them."""

import weakref
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class Known(Generic[T]):
    """What is known of a tensor. A tensor that was written into in place is forgotten: its numbers are others now."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref, int, T]] = {}

    def add(self, tensor: Tensor, fact: T) -> None:
        try:  # as version() asks, without a call: this is done for every tensor of a pass
            seen = tensor._version
        except RuntimeError:
            seen = 0
        self._entries[id(tensor)] = (weakref.ref(tensor), seen, fact)

    def find(self, tensor: Any) -> T | None:
        entry = self._entries.get(id(tensor))
        if entry is None or entry[0]() is not tensor:  # the id is used again
            return None
        try:
            seen = tensor._version  # type: ignore[union-attr]
        except RuntimeError:
            seen = 0
        return entry[2] if entry[1] == seen else None

    def clear(self) -> None:
        self._entries.clear()


def version(tensor: Tensor) -> int:
    """Changes when a tensor is written in place; inference tensors do not count."""
    try:
        return tensor._version
    except RuntimeError:
        return 0
