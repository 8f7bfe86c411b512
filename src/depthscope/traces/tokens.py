"""Which tensors hold tokens."""

import copy
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import is_dataclass
from dataclasses import replace as dataclasses_replace
from typing import Any, NamedTuple

from torch import Tensor


def first_tokens(args: tuple, kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first floating tensor with three axes or more among the arguments of a module."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim >= 3 and value.is_floating_point() and not value.is_nested:
            return value
    return None


def tokens_out(output: Any, shape: tuple[int, ...]) -> Tensor | None:
    """What a module gave back for tokens of this shape: the same shape, or streams of it folded into the batch."""
    if isinstance(output, Tensor):
        tensors = [output]
    else:
        items = output.values() if isinstance(output, Mapping) else output
        tensors = [i for i in items if isinstance(i, Tensor)] if isinstance(items, Iterable) else []
    tensors = [t for t in tensors if t.is_floating_point() and not t.is_nested]
    for tensor in tensors:
        if tuple(tensor.shape) == shape:
            return tensor
    for tensor in tensors:
        streams = tensor.ndim == 3 == len(shape) and tuple(tensor.shape[1:]) == shape[1:]
        if streams and tensor.shape[0] > shape[0] and tensor.shape[0] % shape[0] == 0:
            return tensor
    return None


class Layout(NamedTuple):
    """Where a tensor has its channels, and its tokens: along one axis, or several, as (B, H, W, d) and (B, d, H, W)."""

    tokens: tuple[int, ...]
    channels: int

    def split(self, tensor: Tensor) -> Tensor:
        """The tensor as (..., n, d): tokens next to the channels, everything else in front."""
        axes = (*self.tokens, self.channels)
        if axes == (tensor.ndim - 2, tensor.ndim - 1):
            return tensor  # as most are
        moved = tensor.movedim(axes, tuple(range(-len(axes), 0)))
        return moved.flatten(-len(axes), -2) if len(self.tokens) > 1 else moved

    def joined(self, tokens: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Tokens (..., n, d) as a tensor of the shape they were split from."""
        axes = (*self.tokens, self.channels)
        sizes = [shape[axis] for axis in self.tokens]
        apart = tokens.unflatten(-2, sizes) if len(sizes) > 1 else tokens
        return apart.movedim(tuple(range(-len(axes), 0)), axes)


def tokens_last(tensor: Tensor, axis: int) -> Tensor:
    """The tensor as (..., n, d): the token axis next to the channels, everything else in front."""
    return tensor.movedim(axis, -2)


def replaced(value: Any, old: Tensor, new: Any) -> Any:
    """The same value with one tensor in the place of another, wherever it is: in lists, mappings and records too."""
    if value is old:
        return new
    if isinstance(value, Tensor):
        return value
    if type(value) in (tuple, list):
        return type(value)(replaced(one, old, new) for one in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(replaced(one, old, new) for one in value))
    if isinstance(value, MutableMapping):
        changed = {name: one for name, part in value.items() if (one := replaced(part, old, new)) is not part}
        if changed:
            value = copy.copy(value)
            for name, one in changed.items():
                value[name] = one
        return value
    if is_dataclass(value) and not isinstance(value, type):
        changed = {name: one for name, part in vars(value).items() if (one := replaced(part, old, new)) is not part}
        return dataclasses_replace(value, **changed) if changed else value
    return value
