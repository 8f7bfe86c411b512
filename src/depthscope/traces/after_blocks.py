"""What a recorder notes of the modules after the blocks: how large a pooled vector is that they are given (head.py)."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from depthscope.traces.head import given_to
from depthscope.traces.log import Log
from depthscope.traces.watcher import Watched


class AfterBlocks:
    """Hooks on modules with weights outside the blocks, and on the model; modules inside are known by their weights."""

    def __init__(self, log: Log, tick: Callable[[], int]) -> None:
        self.log, self.tick = log, tick
        self._owners: dict[int, str] = {}  # modules inside blocks, by their weights

    def watched(self, path: str, module: nn.Module, *, inside: bool) -> Iterable[Watched]:
        """inside: something numbered, which may be a block, or a part of a head."""
        weights = module._parameters
        if not path:
            yield Watched(module, after=self._returns)
        elif inside:
            for weight in weights.values():
                if weight is not None:
                    self._owners[id(weight)] = path
        elif any(weight is not None for weight in weights.values()):
            yield Watched(module, before=self._before(path))

    def given_to_weights(self, weight: Any, value: Any) -> None:
        """A module inside something numbered is given a value: its weights tell which it is."""
        path = self._owners.get(id(weight))
        tokens = self.log.calls[-1].result if path is not None and self.log.calls else None
        if path is not None and tokens is not None and value.numel() < math.prod(tokens.shape):
            self._given(path, (value,))

    def _before(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            self._given(path, (*args, *kwargs.values()))

        return hook

    def _returns(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if isinstance(output, Mapping):
            output = tuple(output.values())
        self._given("", output if isinstance(output, tuple | list) else (output,))

    def _given(self, path: str, values: Iterable[Any]) -> None:
        """What a module outside the blocks is given, or what the model returns."""
        tokens = self.log.calls[-1].result if self.log.calls else None
        given = None if tokens is None else given_to(path, values, tokens.shape, self.tick)
        if given is not None:
            self.log.head_inputs.append(given)
