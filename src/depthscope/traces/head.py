"""What the modules after the last block are given: from a pooled vector that has vanished nothing can be learned.

Tokens whose mean was removed leave mean pooling nothing, and the model trains at chance without a word.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from depthscope.checks import rms, rounding_floor
from depthscope.traces.blocks import Block
from depthscope.traces.log import HeadInput, Log, State


def given_to(path: str, values: Iterable[Any], tokens: tuple[int, ...], tick: Callable[[], int]) -> HeadInput | None:
    """How large the input of a module outside the blocks is, or what the model (path "") returns.

    Only what is smaller than the tokens (shape) that the latest block gave is looked at: it may be pooled, and it costs
    next to nothing. Which of these modules come after the last block is known when the model has run.
    """
    with torch._C.DisableTorchFunction():
        given = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and not v.is_nested]
        if given and all(v.numel() < math.prod(tokens) for v in given):
            return HeadInput(path, tick(), max(map(rms, given)))
    return None


def vanished(log: Log, last: Block) -> dict[str, float]:
    """Modules after the last block whose input has vanished: path ("" is the caller) -> its RMS over the tokens'.

    A norm on the way may make the tokens smaller by any factor, so the smallest tokens after the last block count. What
    later blocks read is left out: a decoder may start from zeros. What the model returns counts where no module with
    weights made it: weights may be zero too.
    """
    tokens = min(_rms(state) for state in (last.result, *_normed(log, last)))
    floor = rounding_floor(getattr(torch, last.result.dtype))
    later = [c for c in log.calls if c.entered > last.end and c.result is not None and c.result.numbers is not None]
    inputs = [r for r in log.head_inputs if r.order > last.end and not any(c.entered < r.order < c.left for c in later)]
    by_modules = [r for r in inputs if r.path]
    return {r.path: r.rms / tokens for r in by_modules or inputs if r.rms < floor * tokens}


def _normed(log: Log, last: Block) -> list[State]:
    """The tokens after each norm that follows the last block."""
    results = [c.result for c in log.norms if c.entered > last.end]
    return [s for s in results if s is not None and s.numbers is not None and s.shape == last.result.shape]


def _rms(state: State) -> float:
    return state.numbers.token_size / state.shape[-1] ** 0.5
