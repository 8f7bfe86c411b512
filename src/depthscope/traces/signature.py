"""How a model is called, as far as it may change who sees whom: which arguments are given, of what kinds, which masks.

Two calls with equal signatures are taken to mix tokens alike, so what one of them showed holds for the other.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.inputs import named_arguments

ANSWERS = ("labels", "targets", "label", "target")  # arguments that no stream reads
FLAGS = ("is_causal", "causal", "is_decoder")  # attributes of modules by which models say it


def signature_of(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple:
    """A key: arguments by name, with kinds and ranks of tensors, words and flags as they are, and what masks close.

    Also whether the model is in training, and what its modules say of themselves.
    """
    named, _ = named_arguments(model, args, kwargs)
    masks = {id(x) for x in masks_in(args, kwargs)}
    given = tuple((name, _kind(named[name], masks)) for name in sorted(named) if name not in ANSWERS)
    flags = tuple(vars(m).get(name) for m in model.modules() for name in FLAGS if name in vars(m))
    return model.training, tuple(pair for pair in given if pair[1] is not None), flags


def length_of(args: tuple, kwargs: dict[str, Any], axis: int) -> int:
    """How long the sequences are, by the first tensor among the arguments; 0 where it has no such axis."""
    first = next((x for x in tensors_in((args, kwargs)) if x.ndim > axis), None)
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


def masks_in(args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """Square tensors (.., n, n) among the arguments but the first, which is what the model reads."""
    found = list(tensors_in((args, kwargs)))
    others = [x for x in found[1:] if x is not found[0]]
    return [x for x in others if x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1 and not (x.is_complex() or x.is_meta)]


def _kind(value: Any, masks: set[int]) -> Any:
    """None for what is not given."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.ndim, closes(value) if id(value) in masks else None
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Mapping):
        return tuple((str(name), _kind(value[name], masks)) for name in value)
    if isinstance(value, tuple | list):
        return tuple(_kind(one, masks) for one in value)
    return type(value).__name__


def closes(x: Tensor) -> tuple:
    """What a mask (.., n, n) holds after the diagonal, and up to it, coarsely; whether it is the same for all queries.

    A causal mask, a full one, a prefix and padding differ in it, whatever the sense and size of their numbers; two
    masks of one kind with different paddings do not.
    """
    x = x.detach()
    x = x.to(torch.uint8) if x.dtype == torch.bool else x
    later = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    after, before = x[..., later], x[..., ~later]
    by_key = bool((x.amax(-2) == x.amin(-2)).all())
    return _size(after.max()), _size(after.min()), _size(before.max()), by_key


def _size(number: Tensor) -> tuple[int, int]:
    """Sign and power of two."""
    value = float(number)
    if not math.isfinite(value):
        return (0 if math.isnan(value) else 1 if value > 0 else -1), 10**6
    return (value > 0) - (value < 0), math.frexp(value)[1] if value else 0
