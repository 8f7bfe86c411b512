"""How a model is called, as far as it may change who sees whom: which arguments are given, of what kinds, which masks.

Two calls with equal signatures are taken to mix tokens alike, so what one of them showed holds for the other.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from depthscope.traces.inputs import named_arguments

ANSWERS = ("labels", "targets", "label", "target")  # arguments that no stream reads
SWITCHES = range(3)  # numbers that may switch something; larger ones count, as steps and positions do
WORD = 32  # letters of a string that may be a switch; longer ones are texts
FLAGS = ("is_causal", "causal", "is_decoder")  # attributes of modules by which models say it


def signature_of(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """A key: arguments by name, with kinds and ranks of tensors, words and flags as they are, and what masks close.

    Also whether the model is in training, and what its modules say of themselves.
    """
    named, _ = named_arguments(model, args, kwargs)
    masks = {id(x) for x in masks_in(args, kwargs)}
    given = tuple((name, _kind(named[name], masks)) for name in sorted(named) if name not in ANSWERS)
    own = tuple(v for m in model.modules() for v in _said(vars(m)))
    buffers = tuple(closes(b) for b in model.buffers() if is_square(b))
    return model.training, tuple(pair for pair in given if pair[1] is not None), own, buffers


def _said(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """Words and flags among attributes, and numbers by the names of FLAGS."""
    for name, value in attributes.items():
        if name != "training" and (isinstance(value, bool | Enum) or _is_word(value) or name in FLAGS):
            yield name, value if isinstance(value, bool | int | str | Enum) else type(value).__name__


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and len(value) < WORD


def length_of(args: tuple, kwargs: dict[str, Any], axis: int) -> int:
    """How long the sequences are, by the first tensor among the arguments; 0 where it has no such axis."""
    first = next((x for x in read_in(args, kwargs) if x.ndim > axis), None)
    return 0 if first is None else first.shape[axis]


def tensors_in(values: Any) -> Iterator[Tensor]:
    """All tensors among arguments, in order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(tuple(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from tensors_in(value)
    elif is_dataclass(values) and not isinstance(values, type):
        yield from tensors_in(vars(values))


def read_in(args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors among the arguments but those that are called masks."""
    return list(tensors_in((args, {k: v for k, v in kwargs.items() if "mask" not in k})))


def masks_in(args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """Square tensors (.., n, n) among the arguments, but for a first one that is no mask by its name."""
    found = read_in(args, kwargs)
    named = list(tensors_in({k: v for k, v in kwargs.items() if "mask" in k}))
    return [x for x in (*found[1:], *named) if is_square(x) and (not found or x is not found[0])]


def is_square(x: Tensor) -> bool:
    return x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1 and not (x.is_complex() or x.is_meta)


def _kind(value: Any, masks: set[int]) -> Any:
    """None for what is not given."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.ndim, closes(value) if id(value) in masks else uniform(value)
    if isinstance(value, bool | Enum) or value is None or _is_word(value):
        return value
    if isinstance(value, int):
        return value if value in SWITCHES else "int"
    if is_dataclass(value) and not isinstance(value, type):
        return _kind(vars(value), masks)
    if isinstance(value, Mapping):
        return tuple((str(name), _kind(value[name], masks)) for name in value)
    if isinstance(value, tuple | list):
        return tuple(_kind(one, masks) for one in value)
    return type(value).__name__


def uniform(x: Tensor) -> Any:
    """The one value of flags and kinds of tokens that are all the same; None for others, and for numbers."""
    if x.is_floating_point() or x.is_complex() or x.is_meta or not x.numel():
        return None
    first = int(x.flatten()[0])
    return first if first in SWITCHES and bool((x == first).all()) else None


_CLOSED: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # tensor -> the version that was read, what it closes


def closes(x: Tensor) -> tuple:
    """What a mask (.., n, n) holds after the diagonal, and up to it, coarsely; whether it is the same for all queries.

    A causal mask, a full one, a prefix and padding differ in it, whatever the sense and size of their numbers; two
    masks of one kind with different paddings do not. A tensor that was not written into since is not read again.
    """
    if x.is_inference():  # it does not count how often it was written into
        return _read(x)
    version, found = _CLOSED.get(x, (-1, ()))
    if version != x._version:
        found = _read(x)
        _CLOSED[x] = x._version, found
    return found


def _read(x: Tensor) -> tuple:
    x = x.detach()
    x = x.to(torch.uint8) if x.dtype == torch.bool else x
    x = x.reshape(-1, *x.shape[-2:])
    high, low = x.amax(0), x.amin(0)  # (n, n)
    later = torch.ones(high.shape, dtype=torch.bool, device=x.device).triu(1)
    by_key = bool((x.amax(-2) == x.amin(-2)).all())
    return _size(high[later].max()), _size(low[later].min()), _size(high[~later].max()), by_key


def _size(number: Tensor) -> tuple[int, int]:
    """Sign and power of two."""
    value = float(number)
    if not math.isfinite(value):
        return (0 if math.isnan(value) else 1 if value > 0 else -1), 10**6
    return (value > 0) - (value < 0), math.frexp(value)[1] if value else 0
