"""Values inside tuples, lists, mappings and records: what modules take and return."""

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

DEEP = 4  # levels: beyond them it is a model's own bookkeeping


def leaves(value: Any, deep: int = DEEP) -> Iterator[Any]:
    """All values inside, in their order."""
    if deep and isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part, deep - 1)
    elif deep and isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part, deep - 1)
    elif deep and _is_record(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name, None), deep - 1)
    else:
        yield value


def mapped(f: Callable[..., Any], first: Any, *others: Any, deep: int = DEEP) -> Any:
    """f of the values at the same place of nests of one form, in a nest of that form; shared parts are not changed."""
    if deep and isinstance(first, tuple | list):
        parts = [mapped(f, *same, deep=deep - 1) for same in zip(first, *others, strict=True)]
        if all(new is old for new, old in zip(parts, first, strict=True)):
            return first
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if deep and isinstance(first, MutableMapping):
        changed = {key: mapped(f, *(nest[key] for nest in (first, *others)), deep=deep - 1) for key in first}
        if all(changed[key] is first[key] for key in first):
            return first
        new = copy.copy(first)
        for key, part in changed.items():
            new[key] = part
        return new
    if deep and _is_record(first):
        names = [field.name for field in fields(first) if hasattr(first, field.name)]
        changed = {k: mapped(f, *(getattr(nest, k) for nest in (first, *others)), deep=deep - 1) for k in names}
        if all(changed[name] is getattr(first, name) for name in names):
            return first
        new = copy.copy(first)
        for name, part in changed.items():
            object.__setattr__(new, name, part)
        return new
    return f(first, *others)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Tensor)
