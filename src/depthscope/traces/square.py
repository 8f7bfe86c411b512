"""As many sequences as tokens: one more, smaller, pass tells the batch axis from the token axis."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from depthscope.errors import DepthscopeError
from depthscope.traces.inputs import Batch
from depthscope.traces.log import Log


def token_axis_of_square(model: nn.Module, batch: Batch, run: Callable[[Batch], Log]) -> int | None:
    """Run once more with the first axis of the inputs one shorter; batch and tokens then differ in size.

    Whichever of the two was cut, attention shows the number of tokens, and the states show on which axis it is.
    """
    tensors = [v for v in (*batch.args, *batch.kwargs.values()) if isinstance(v, Tensor) and v.ndim]
    if not tensors or tensors[0].shape[0] < 3:
        return None
    size = tensors[0].shape[0]

    def cut(value: Any) -> Any:
        return value[:-1] if isinstance(value, Tensor) and value.ndim and value.shape[0] == size else value

    args, kwargs = tuple(map(cut, batch.args)), {k: cut(v) for k, v in batch.kwargs.items()}
    try:
        log = run(replace(batch, args=args, kwargs=kwargs, mask=None))
    except DepthscopeError:
        return None
    axes = {call.source.axis for call in log.calls if call.source is not None and len(call.source.shape) == 3}
    return axes.pop() if len(axes) == 1 else None
