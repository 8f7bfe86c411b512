"""Where shapes alone cannot tell the batch axis from the token axis, one more and shorter pass can."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from depthscope.errors import DepthscopeError
from depthscope.traces.inputs import Batch
from depthscope.traces.log import Log


def first_size(args: tuple, kwargs: dict[str, Any]) -> int | None:
    """The first axis of the first tensor among the inputs."""
    return next((v.shape[0] for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.ndim), None)


def one_row_less(args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The inputs with the first axis one shorter, wherever they have it."""
    size = first_size(args, kwargs)

    def cut(value: Any) -> Any:
        return value[:-1] if isinstance(value, Tensor) and value.ndim and value.shape[0] == size else value

    return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}


def token_axis_of_shorter(batch: Batch, run: Callable[[Batch], Log]) -> int | None:
    """Run once more with the first axis of the inputs one shorter: batch and tokens can then be told apart.

    Whichever of the two was cut, attention shows the number of tokens, and the states show on which axis it is. None
    when the model cannot run like that, or when no attention over whole sequences is seen any more.
    """
    size = first_size(batch.args, batch.kwargs)
    if size is None or size < 2:
        return 0 if size else None  # one row cannot be cut, and one sequence of it is as good as it gets
    args, kwargs = one_row_less(batch.args, batch.kwargs)
    try:
        log = run(replace(batch, args=args, kwargs=kwargs, mask=None))
    except DepthscopeError:
        return None
    if log.frames.assumed or not log.frames:
        return None
    axes = {call.source.axis for call in log.calls if call.source is not None and len(call.source.shape) == 3}
    return axes.pop() if len(axes) == 1 else None
