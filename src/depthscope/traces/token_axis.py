"""Along which axis the tokens lie: what attention works on tells it; where shapes cannot, one shorter pass can."""

import itertools
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import DepthscopeError
from depthscope.traces.tokens import Layout


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
        self.images: dict[tuple[int, ...], Layout] = {}  # shapes whose tokens lie along several axes
        self._layouts: dict[tuple[int, ...], Layout | None] = {}  # all others that were asked for

    def again(self) -> "Frames":
        """The same for another pass, which may learn more."""
        new = Frames(square_axis=self.square_axis, batch_first=self.batch_first)
        new.pairs, new.images, new.assumed = list(self.pairs), dict(self.images), self.assumed
        return new

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def add(self, batch: int, tokens: int) -> None:
        if (batch, tokens) not in self.pairs:
            self.pairs.append((batch, tokens))
            self._layouts.clear()

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

    def layout_of(self, shape: tuple[int, ...]) -> Layout | None:
        """Where a tensor with this shape has its tokens and channels, None when it holds no tokens."""
        if shape in self.images:
            return self.images[shape]
        if shape not in self._layouts:
            axis = self.axis_of(shape)
            self._layouts[shape] = None if axis is None else Layout((axis,), len(shape) - 1)
        return self._layouts[shape]

    def is_ambiguous(self, shape: tuple[int, ...]) -> bool:
        """As many sequences as tokens: the shape alone cannot tell (B, n, d) from (n, B, d)."""
        return len(shape) == 3 and shape[0] == shape[1] and not self.assumed


def batch_of(shape: tuple[int, ...], front: tuple[int, ...], queries: int) -> int | None:
    """How many sequences attention works on; None when it does not work on whole sequences of tokens of this shape.

    front: its axes before the queries. (B, h) says it, and must fit tokens (B, n, d) or (n, B, d), or leave n an axis
    of its own where streams are folded into the batch. (B h,) folds the heads into the batch, so B is read off the
    tokens, (n, d) has none.
    """
    sizes = list(shape[:-1])
    if queries not in sizes:
        return None
    sizes.remove(queries)
    others = math.prod(sizes)
    if len(front) == 2 and others % front[0] == 0 and (others == front[0] or queries != front[0]):
        return front[0]
    if len(front) == 1 and len(sizes) == 1 and front[0] % sizes[0] == 0:
        return sizes[0]
    return 1 if len(front) < 2 and not sizes else None


def first_size(args: tuple, kwargs: dict[str, Any]) -> int | None:
    """The first axis of the first tensor among the inputs."""
    return next((v.shape[0] for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), None)


def axis_of_shorter(args: tuple, kwargs: dict[str, Any], seen: Callable[[tuple, dict], int | None]) -> int | None:
    """The token axis as it is seen with the first axis of the inputs one shorter: batch and tokens then differ.

    Whichever of the two was cut, attention shows the number of tokens, and the states show on which axis it is.
    seen(args, kwargs) runs the model and says the axis, or None. None too when the model cannot run like that.
    Masks among the inputs, (B, n) or (n, n), must change along: all ways are tried until the model runs.
    """
    size = first_size(args, kwargs)
    if size is None or size < 2:
        return 0 if size else None  # one row cannot be cut, and one sequence of it is as good as it gets
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim]
    sizes = dict.fromkeys(t.shape[0] for t in tensors if t.ndim > 1 and t.shape[0] > 1) or [size]
    for size, way in itertools.product(sizes, (_rows, _keys, _queries_and_keys, _by_name, _rows_alone)):
        change = partial(_changed, partial(way, size=size, kept=_other_length(size, tensors)))
        try:
            axis = seen(tuple(map(change, args)), {name: change(value, name) for name, value in kwargs.items()})
        except DepthscopeError:  # masks that do not fit any more, and whatever else a model minds
            continue
        if axis is not None:
            return axis
    return None


def _changed(way: Callable[..., Tensor], value: Any, name: str = "") -> Any:
    return way(value, name=name) if isinstance(value, Tensor) and value.ndim else value


def _other_length(size: int, tensors: list[Tensor]) -> list[int]:
    """Which rows to keep: one less, or so many that their number is no other size of the inputs, but two or more."""
    taken = {length for tensor in tensors for length in tensor.shape[: max(1, min(2, tensor.ndim))]}
    lengths = [n for n in (size - 1, size - 2, size + 1) if n >= 2]
    length = next((n for n in lengths if n not in taken), lengths[0])
    return [min(i, size - 1) for i in range(length)]  # one more: the last one again


def _rows(value: Tensor, size: int, kept: list[int], name: str) -> Tensor:
    """The first axis of every tensor."""
    return value[kept] if value.shape[0] == size else value


def _keys(value: Tensor, size: int, kept: list[int], name: str) -> Tensor:
    """The same, but of masks (B, n) the keys: the first axis of the tokens is n."""
    if value.ndim != 2 or not (value.dtype == torch.bool or value.is_floating_point() or "mask" in name):
        return _rows(value, size, kept, name)
    return value[:, kept] if value.shape[1] == size else value


def _queries_and_keys(value: Tensor, size: int, kept: list[int], name: str) -> Tensor:
    """The same where masks of scores (n, n) lose a query too."""
    return value[kept][:, kept] if value.shape == (size, size) else _keys(value, size, kept, name)


def _by_name(value: Tensor, size: int, kept: list[int], name: str) -> Tensor:
    """As many sequences as tokens, and both masks are there: that of padding is called so."""
    return (_keys if "padding" in name else _queries_and_keys)(value, size, kept, name)


def _rows_alone(value: Tensor, size: int, kept: list[int], name: str) -> Tensor:
    """The first axis, but a square mask of scores stays: the first axis of the tokens is the batch."""
    scores = value.shape == (size, size) and "padding" not in name
    return value if scores else _rows(value, size, kept, name)
