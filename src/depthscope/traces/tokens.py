"""Which tensors hold tokens, and along which axis."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class Frames:
    """Pairs (batch, tokens) that attention was seen to work on: they tell the token axis of every other tensor.

    A tensor (B, n, d) is batch-first, (n, B, d) time-first as in XLNet; in (streams x B, n, d) or (B, streams, n, d)
    only n is found, and everything else counts as batch.
    """

    def __init__(self, *, square_axis: int = 1, batch_first: bool = False) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.square_axis = square_axis  # where the tokens are when there are as many sequences as tokens
        self.batch_first = batch_first  # attention that would make the first axis the tokens is not believed
        self.assumed = False

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def add(self, batch: int, tokens: int) -> None:
        if (batch, tokens) not in self.pairs:
            self.pairs.append((batch, tokens))

    def assume(self, shape: Iterable[int]) -> None:
        """No attention to go by: take (..., n, d)."""
        *front, n, _ = shape
        self.assumed = True
        self.add(front[0] if front else 1, n)

    def axis_of(self, shape: tuple[int, ...]) -> int | None:
        """The token axis of a tensor with this shape, or None when it holds no tokens."""
        for batch, n in self.pairs:
            if shape[:-1] == (batch, n) == (n, batch):
                return self.square_axis
            if shape[:-1] == (batch, n):
                return 1
            if shape[:-1] == (n, batch):
                return 0
        for _, n in self.pairs:
            fits = [i for i in range(len(shape) - 1) if shape[i] == n]
            if fits:
                return fits[-1]
        return None

    def is_ambiguous(self, shape: tuple[int, ...]) -> bool:
        """As many sequences as tokens: the shape alone cannot tell (B, n, d) from (n, B, d)."""
        return len(shape) == 3 and shape[0] == shape[1] and not self.assumed


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


def tokens_last(tensor: Tensor, axis: int) -> Tensor:
    """The tensor as (..., n, d): the token axis next to the channels, everything else in front."""
    return tensor.movedim(axis, -2)


def version(tensor: Tensor) -> int:
    """Changes when a tensor is written in place; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


def is_scalar(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, torch.Tensor) and value.numel() == 1)
