"""Tensors inside lists, mappings and records: what modules take and give."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

DEEP = 4  # levels that are looked into
LISTS = (tuple, list)
PLAIN = {type(None), bool, int, float, str}  # most of what functions are given beside tensors: nothing is inside


def ways_to_tensors(values: tuple) -> dict[tuple, Tensor]:
    """The tensors among some values by the way to each: places in lists, names in mappings and records."""
    found: dict[tuple, Tensor] = {}
    for i, value in enumerate(values):
        _collect(value, (i,), found)
    return found


def _collect(value: Any, way: tuple, found: dict[tuple, Tensor]) -> None:
    if isinstance(value, Tensor):
        found[way] = value
    elif len(way) < DEEP + 2:
        for name, part in _entries(value):
            _collect(part, (*way, name), found)


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    if type(value) in PLAIN:
        return ()
    if isinstance(value, LISTS):
        return enumerate(value)
    if type(value) is dict:  # asked before Mapping, which takes longer to answer
        return value.items()
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in fields(value)]
    return ()


def tensors_in(values: Iterable[Any], deep: int = DEEP) -> Iterator[Tensor]:
    """The tensors among some values, also inside lists, mappings and records."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif deep and type(value) not in PLAIN:
            yield from tensors_in((part for _, part in _entries(value)), deep - 1)
