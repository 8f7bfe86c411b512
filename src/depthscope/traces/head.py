"""What the modules after the last block are given: from a pooled vector that has vanished nothing can be learned.

Tokens whose mean was removed leave mean pooling nothing, and the model trains at chance without a word.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.checks import rms, rounding_floor
from depthscope.traces.blocks import Block
from depthscope.traces.log import Log, Read, State


def watch_reads(path: str, module: nn.Module, log: Log, tick: Callable[[], int]) -> list[Any]:
    """A hook that logs how large the input of a module with weights is, or what the model (path "") returns.

    Only what is smaller than the tokens that the latest block gave is looked at: it may be pooled, and it costs next to
    nothing. Which of these modules come after the last block is known when the model has run.
    """

    def read(values: Iterable[Any]) -> None:
        tokens = log.calls[-1].result if log.calls else None
        if tokens is None:
            return
        with torch._C.DisableTorchFunction():
            given = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and not v.is_nested]
            if given and all(v.numel() < math.prod(tokens.shape) for v in given):
                log.reads.append(Read(path, tick(), max(map(rms, given))))

    def before(_: nn.Module, args: tuple, kwargs: dict) -> None:
        read((*args, *kwargs.values()))

    if not path:
        return [module.register_forward_hook(lambda _, args, output: read(_parts(output)))]
    has_weights = next(module.parameters(recurse=False), None) is not None
    return [module.register_forward_pre_hook(before, with_kwargs=True)] if has_weights else []


def _parts(output: Any) -> Iterable[Any]:
    if isinstance(output, Mapping):
        return output.values()
    return output if isinstance(output, tuple | list) else (output,)


def vanished(log: Log, last: Block) -> dict[str, float]:
    """Who is given nothing after the last block: path ("" is the caller) -> RMS of its input over that of the tokens.

    A norm on the way may make the tokens smaller by any factor, so the smallest tokens after the last block count. What
    later blocks read is left out: a decoder may start from zeros. What the model returns counts where no module with
    weights made it: weights may be zero too.
    """
    tokens = min(_rms(state) for state in (last.result, *_normed(log, last)))
    floor = rounding_floor(getattr(torch, last.result.dtype))
    later = [c for c in log.calls if c.entered > last.end and c.result is not None and c.result.numbers is not None]
    reads = [r for r in log.reads if r.order > last.end and not any(c.entered < r.order < c.left for c in later)]
    by_modules = [r for r in reads if r.path]
    return {r.path: r.rms / tokens for r in by_modules or reads if r.rms < floor * tokens}


def _normed(log: Log, last: Block) -> list[State]:
    """The tokens after each norm that follows the last block."""
    results = [c.result for c in log.norms if c.entered > last.end]
    return [s for s in results if s is not None and s.numbers is not None and s.shape == last.result.shape]


def _rms(state: State) -> float:
    return state.numbers.token_size / state.shape[-1] ** 0.5
