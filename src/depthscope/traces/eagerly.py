"""Compiled code stands aside while a model is watched: torch.compile would compile what the watcher does.

torch._dynamo is loaded by whoever compiles, and takes seconds to load. So nothing here loads it: where it is not there
yet, its import is waited for, as of a model that compiles its parts in the pass itself.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import RLock
from typing import Any

import torch

COMPILER = "torch._dynamo"
_lock, _inside, _stance = RLock(), 0, ExitStack()


@contextmanager
def eagerly() -> Iterator[None]:
    """While entered, what torch.compile has made, or makes now, runs its own Python.

    The last one to leave puts back what was: those who watch the same pass do not leave in turn, and each would put
    back what it found.
    """
    _count(1)
    try:
        yield
    finally:
        _count(-1)


class _Awaited(MetaPathFinder):
    """Sets the stance as soon as the compiler has been imported; it is found where it always is."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != COMPILER or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def loaded(module: Any) -> None:
                load(module)
                _compiler_came()

            spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


_awaited = _Awaited()


def _compiler_came() -> None:
    with _lock:
        if _inside:
            _stance.enter_context(torch.compiler.set_stance("force_eager"))


def _count(change: int) -> None:
    global _inside
    with _lock:
        if _inside == 0:
            if COMPILER in sys.modules:
                _stance.enter_context(torch.compiler.set_stance("force_eager"))
            else:
                sys.meta_path.insert(0, _awaited)
        _inside += change
        if _inside == 0:
            _stance.close()
            if _awaited in sys.meta_path:
                sys.meta_path.remove(_awaited)
