"""The hooks of a change: known by their owner, and carried along when their model is copied or pickled.

The owner goes with its model: what its first and last hook hold. It sleeps until its model is called, or asked for its
changes; then it sets all its hooks anew. Hooks on blocks are closures and are not carried; what is left of one in a
block that was copied alone says that the change is not there.
"""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from depthscope.errors import DepthscopeError, FixLostWarning, UsageError, name_caller
from depthscope.traces.modules import modules_in

TABLES = {  # of hooks, and of what torch notes of each by its number
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
}
COMPILED_LATER = (
    "depthscope changes this model by hooks: compile first, then call fix_ on the compiled model, or export "
    "with strict=False"
)


class Hook:
    """A hook that a scan can recognise, and that names who was called in what it raises.

    call: a function, or the name of the owner's own method, which a copy of the owner has too.
    """

    def __init__(self, owner: Any, call: Callable[..., Any] | str) -> None:
        self.depthscope_fix, self.call = owner, call

    def __call__(self, *args: Any) -> Any:
        owner = self.depthscope_fix
        if owner is not None and owner.graph is not None and owner.graph.tracing:
            return None  # the model's code is being compiled, or was: hooks of the graph act in it
        if torch.compiler.is_dynamo_compiling():  # in one graph an error of its own; else this runs outside of it
            raise UsageError(COMPILED_LATER)
        compiler = sys.modules.get("torch._dynamo")  # slow to load, and not there unless somebody compiles
        if compiler is None:
            return self._ran(*args)
        return compiler.disable(self._ran, reason=COMPILED_LATER)(*args)

    def _ran(self, *args: Any) -> Any:
        owner = self.depthscope_fix
        if owner is None:
            return _lost(args[0])
        try:
            if owner.asleep:
                return wake_in(args[0], *args)
            call = getattr(owner, self.call) if isinstance(self.call, str) else self.call
            return call(*args)
        except DepthscopeError as error:
            name_caller(error, owner.called)
            raise

    @property
    def __name__(self) -> str:
        """For torch.jit.script, which compiles hooks by their source and asks for this first."""
        if "/jit/" in sys._getframe(1).f_code.co_filename.replace("\\", "/"):
            raise UsageError(
                f"{self.depthscope_fix} acts by hooks in Python, which torch.jit.script cannot compile. Call the model "
                "once, then take torch.export.export(model, inputs) or torch.jit.trace(model, inputs)."
            )
        return "depthscope_hook"

    def __getstate__(self) -> dict[str, Any]:
        carried = isinstance(self.call, str) and self.depthscope_fix is not None and not self.depthscope_fix.led
        return {"depthscope_fix": self.depthscope_fix if carried else None, "call": self.call if carried else ""}


def wake_in(model: nn.Module, *call: Any) -> None:
    """Let all changes of a model that were carried along set their hooks anew; call: a pass that has begun already."""
    found = [hook for module in modules_in(model).values() for hook in module._forward_pre_hooks.values()]
    owners = dict.fromkeys(hook.depthscope_fix for hook in found if isinstance(hook, Hook) and hook.depthscope_fix)
    asleep = [owner for owner in owners if owner.asleep]
    if not asleep:
        return
    for module in modules_in(model).values():
        _clear(module, lambda hook: hook.depthscope_fix is None or hook.depthscope_fix in asleep)
    for hook in found:
        if isinstance(hook, Hook) and hook.depthscope_fix in asleep:
            hook.call = "rests"  # torch may call it once more, in the pass that has begun
    for owner in asleep:
        owner.wake()
    for owner in asleep:
        if call and owner.model is model:
            owner.begins_late(*call)


def _lost(module: nn.Module) -> None:
    """Say that a module was copied out of a changed model, and let it run by itself from now on."""
    if not _clear(module, lambda hook: hook.depthscope_fix is None):
        return  # a change has set its own in the pass that has begun: torch still calls those that were there
    warnings.warn(
        f"this {type(module).__name__} was copied out of a model with a change of depthscope (fix_, without_), which "
        "is not in the copy. Copy the whole model, or call fix_ on the model that has the copy.",
        FixLostWarning,
        stacklevel=2,
    )


def _clear(module: nn.Module, gone: Callable[[Hook], bool]) -> int:
    """Take hooks off; how many there were."""
    count = 0
    for table, more in TABLES.items():
        hooks = getattr(module, table)
        for number in [number for number, hook in hooks.items() if isinstance(hook, Hook) and gone(hook)]:
            count += 1
            for name in (table, *more):
                getattr(module, name).pop(number, None)
    return count
