"""The batch that a model was trained on last: what a monitor without a probe looks at."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError


class LastBatch:
    """Remembers the arguments of the model's last call in training mode. No copy is made, and no graph is kept."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._call: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._hook = model.register_forward_pre_hook(self._remember, with_kwargs=True)

    def _remember(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not module.training:  # looks of the monitor are none of these calls
            return
        self._call = tuple(map(_detached, args)), {name: _detached(value) for name, value in kwargs.items()}

    def __call__(self) -> Any:
        """Its inputs, as ds.scan takes them."""
        if self._call is None:
            raise UsageError(
                "without a probe the model itself must be called in training mode before a look; no call was seen (a "
                "part of it was called, or all of it is compiled). Give probe=, a fixed batch."
            )
        args, kwargs = self._call
        return args if not kwargs else {**_named(self.model, args), **kwargs}

    def remove(self) -> None:
        self._hook.remove()
        self._call = None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _named(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments by their names, where others came by name: a scan takes one kind."""
    inner = getattr(model, "_orig_mod", model)
    inner = inner.module if isinstance(inner, nn.parallel.DistributedDataParallel) else inner
    names = [
        name
        for name, one in inspect.signature(inner.forward).parameters.items()
        if one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if len(names) < len(args):
        raise UsageError(
            f"the arguments of {type(inner).__name__}.forward must have names; {len(args)} came by position, and it "
            f"names {len(names)}. Give probe=, a fixed batch."
        )
    return dict(zip(names, args, strict=False))
