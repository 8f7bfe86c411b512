"""What is recognised again: tensors by identity, norms by the name of their class."""

import weakref
from typing import Any

from torch import Tensor, nn

from depthscope.traces.log import State
from depthscope.traces.tokens import version

OWN = "depthscope_"  # how the names of modules begin that fix_ adds to a model


class Known:
    """Which tensor is which State, and by what factor it is scaled; one that was written in place is a stranger."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref, int, State, float]] = {}

    def add(self, tensor: Tensor, state: State, scale: float = 1.0) -> None:
        self._entries[id(tensor)] = (weakref.ref(tensor), version(tensor), state, scale)

    def find(self, tensor: Any) -> tuple[State, float] | None:
        entry = self._entries.get(id(tensor))
        if entry is None:
            return None
        reference, seen, state, scale = entry
        target = reference()
        if target is None or target is not tensor:  # the id is used again
            return None
        return (state, scale) if seen == version(target) else None

    def clear(self) -> None:
        self._entries.clear()


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation: LayerNorm, LlamaRMSNorm, T5LayerNorm, ..., and not a block that has one.

    It may wrap one other norm; a module that owns two is a wiring, whatever its name.
    """
    parts = [type(part).__name__.lower() for part in module.modules()]
    return "norm" in parts[0] and len(parts) <= 3 and sum("norm" in name for name in parts[1:]) <= 1


def fixes_in(model: nn.Module) -> list[Any]:
    """What fix_ has put into the model, read off its hooks."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return list(dict.fromkeys(hook.depthscope_fix for hook in hooks if hasattr(hook, "depthscope_fix")))
