"""Compiled models run eagerly while changed: compiled code does not call hooks that came later.

What fits in one graph with the change is compiled anew, by the wrapper's own settings (graphs.py); the wrapper's code
without the change is kept for later.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from depthscope.traces.eagerly import eagerly


@contextmanager
def eager_calls(model: nn.Module, wrappers: list[nn.Module]) -> Iterator[None]:
    """Let every call of a model that torch.compile has wrapped, or compiled in place, run its own Python."""
    outer = [w for w in wrappers if is_compiled(w)]
    inner = [m for m in model.modules() if is_compiled(m)]
    in_place = compiled_in_place(model)
    kept = [m._compiled_call_impl for m in in_place]
    with ExitStack() as stack:
        for module in outer or ([model] if inner else []):
            stack.enter_context(_eager_around(module))
        for module, call in zip(in_place, kept, strict=True):
            module._compiled_call_impl = None
            stack.callback(setattr, module, "_compiled_call_impl", call)
        yield


def wrappers_around(model: nn.Module) -> list[Any]:
    """What torch.compile has made of a model, or of one that holds it, and somebody still has: it may be called later.

    Compiled code of torch's own modules does not look for hooks that came after it.
    """
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None:
        return []
    wrappers = [one for one in gc.get_objects() if issubclass(type(one), compiler.OptimizedModule)]
    return [one for one in wrappers if any(part is model for part in one._orig_mod.modules())]


def compiles_around() -> bool:
    """Whether torch.compile runs or compiles what calls this, and was not told to stand aside."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    if compiler is None or compiler._stance.stance == "force_eager":
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "compile_wrapper" and frame.f_code.co_filename == compiler.__file__:
            return True
        frame = frame.f_back
    return False


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile has wrapped this module."""
    return isinstance(getattr(module, "_orig_mod", None), nn.Module)


def compiled_in_place(model: nn.Module) -> list[nn.Module]:
    """The parts of a model on which compile() was called."""
    return [m for m in model.modules() if getattr(m, "_compiled_call_impl", None) is not None]


@contextmanager
def _eager_around(module: nn.Module) -> Iterator[None]:
    """Hooks that make torch.compile stand aside for the time of a call; an interrupted call is ended by the next."""
    call = ExitStack()

    def before(*_: Any) -> None:
        call.close()
        call.enter_context(eagerly())

    def after(*_: Any) -> None:
        call.close()

    with call:
        handles = [
            module.register_forward_pre_hook(before, prepend=True),
            module.register_forward_hook(after, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
