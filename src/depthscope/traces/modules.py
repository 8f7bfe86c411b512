"""The modules of a model by their paths, in the order of torch's own walk, without its nested generators."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

_HELD: ContextVar[tuple[nn.Module, dict[str, nn.Module]] | None] = ContextVar("held", default=None)


@contextmanager
def held(model: nn.Module) -> Iterator[None]:
    """For a while in which nobody runs or changes a model, its modules are walked once."""
    token = _HELD.set((model, modules_in(model)))
    try:
        yield
    finally:
        _HELD.reset(token)


def has_parts(module: nn.Module) -> bool:
    """Whether a module has modules inside."""
    return any(part is not None for part in module._modules.values())


def modules_in(model: nn.Module) -> dict[str, nn.Module]:
    """What model.named_modules() gives: every module once, under its first path.

    torch's walk hands each module up through all the generators above it. A scan walks many times, and in small models
    that is a good part of its cost.
    """
    known = _HELD.get()
    if known is not None and known[0] is model:
        return known[1]
    found: dict[str, nn.Module] = {}
    met: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        found[path] = module
        parts = module._modules
        if parts:  # most have none
            inside = path + "." if path else ""
            waiting += [(inside + name, part) for name, part in reversed(list(parts.items())) if part is not None]
    return found
