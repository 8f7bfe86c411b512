"""Along which axis the tokens lie: what attention works on tells it; where shapes cannot, one shorter pass can."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from depthscope.errors import DepthscopeError


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


def first_size(args: tuple, kwargs: dict[str, Any]) -> int | None:
    """The first axis of the first tensor among the inputs."""
    return next((v.shape[0] for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), None)


def axis_of_shorter(args: tuple, kwargs: dict[str, Any], seen: Callable[[tuple, dict], int | None]) -> int | None:
    """The token axis as it is seen with the first axis of the inputs one shorter: batch and tokens then differ.

    Whichever of the two was cut, attention shows the number of tokens, and the states show on which axis it is.
    seen(args, kwargs) runs the model and says the axis, or None. None too when the model cannot run like that.
    """
    size = first_size(args, kwargs)
    if size is None or size < 2:
        return 0 if size else None  # one row cannot be cut, and one sequence of it is as good as it gets

    def cut(value: Any) -> Any:
        return value[:-1] if isinstance(value, Tensor) and value.ndim and value.shape[0] == size else value

    try:
        return seen(tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()})
    except DepthscopeError:  # masks that do not fit any more, and whatever else a model minds
        return None
