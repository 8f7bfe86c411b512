"""The one mode that watches a running model: hooks on modules that a listener names, and the torch functions between.

A listener is told of each operation before it runs and gives back the result that goes on, so that it can measure
(recorder.py), follow the residual stream and change it (follower.py), or compute something else in its place.
"""

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from depthscope.traces.eagerly import eagerly
from depthscope.traces.operations import QUESTIONS, ROLES, VIEWS, Operation

Before = Callable[[nn.Module, tuple, dict], Any]  # module, args, kwargs -> others in their place, or None
After = Callable[[nn.Module, tuple, dict, Any], Any]  # and the output -> another, or None


class Watched(NamedTuple):
    """A module, and what to call before and after it. first: before other hooks. always: also when the module fails."""

    module: nn.Module
    before: Before | None = None
    after: After | None = None
    first: bool = False
    always: bool = False


class Listener(Protocol):
    """What is told of a forward pass."""

    @property
    def everything(self) -> bool:
        """Whether operations without a role are of interest at the moment."""
        ...

    def modules(self) -> Iterable[Watched]:
        """The modules to be told of."""
        ...

    def operation(self, op: Operation) -> Any:
        """A torch function is called: op.run(), or what takes its place."""
        ...

    def closed(self, failed: bool) -> None:
        """The pass has ended."""
        ...


class Watcher(TorchFunctionMode):
    """While entered, tells a listener of the modules it named and of the torch functions that have a role.

    running: a module whose hooks are being called when the watcher is entered. Others would not be called, or change
    the table that torch goes through; its beginning is told by began().
    """

    def __init__(self, listener: Listener, running: nn.Module | None = None) -> None:
        super().__init__()
        self.listener, self.running = listener, running
        self._handles: list[Any] = []
        self._missed: list[Before] = []
        self._opened = ExitStack()  # what is undone at the end
        self.is_over: Callable[[], bool] = _never  # whether the pass was left without an end: nothing is watched then

    def began(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Tell the listener that the running module began with these arguments; returns those to go on with."""
        for before in self._missed:
            args, kwargs = before(self.running, args, kwargs) or (args, kwargs)  # type: ignore[arg-type]
        return args, kwargs

    def __enter__(self) -> "Watcher":
        with ExitStack() as opened:
            opened.callback(self._unhook)
            for watched in self.listener.modules():
                self._hook(watched)
            opened.enter_context(eagerly())
            super().__enter__()
            self._opened = opened.pop_all()
        return self

    def _hook(self, watched: Watched) -> None:
        module, before, after, first, always = watched
        if module is self.running:
            self._missed += [before] if before is not None else []
            return
        if before is not None:
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True, prepend=first))
        if after is not None:

            def ends(module: nn.Module, args: tuple, *rest: Any) -> Any:
                # torch leaves kwargs out for a hook that was removed while the module ran
                return after(module, args, rest[0] if len(rest) == 2 else {}, rest[-1])

            handle = module.register_forward_hook(ends, with_kwargs=True, prepend=first, always_call=always)
            self._handles.append(handle)

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._opened.close()
        self.listener.closed(error[0] is not None)

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.is_over():
            return func(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            with self._again():
                return body_of(func)(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        role = ROLES.get(name)
        if role is None and (not self.listener.everything or (name in QUESTIONS and func not in VIEWS)):
            return func(*args, **(kwargs or {}))
        return self.listener.operation(Operation(func, name, role, args, kwargs or {}))

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Be asked inside one's own call too."""
        super().__enter__()
        try:
            yield
        finally:
            super().__exit__(None, None, None)


def _never() -> bool:
    return False


@cache
def body_of(func: Any) -> Any:
    """multi_head_attention_forward without its hand-over to function modes: a copy of the function, torch untouched.

    The hand-over is one test at its top; with that test answered "no", the calls inside reach the watcher.
    """
    names = {**func.__globals__, "has_torch_function": lambda _: False}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return body


@contextmanager
def unwatched() -> Iterator[None]:
    """Let a remedy compute for itself: its own sums and softmaxes are not the model's."""
    held = []
    try:
        while torch._C._len_torch_function_stack():
            held.append(torch._C._pop_torch_function_stack())
        yield
    finally:
        for mode in reversed(held):
            torch._C._push_on_torch_function_stack(mode)


def unasked(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook whose own questions to tensors, as for a shape, do not go through the watcher: they are many."""

    def hooked(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return hook(*args)

    return hooked


class OuterNorms:
    """Norms that are modules, one event each: a norm inside a norm is a part of it."""

    def __init__(self, on_norm: Callable[[nn.Module, tuple, dict, Any], Any]) -> None:
        self.on_norm, self.open = on_norm, 0

    def watched(self, module: nn.Module, *, first: bool = False) -> Watched:
        return Watched(module, self._begins, self._ends, first)

    def _begins(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.open += 1

    def _ends(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
        self.open -= 1
        return None if self.open else self.on_norm(module, args, kwargs, output)
