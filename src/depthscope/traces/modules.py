"""The modules of a model by their paths, in the order of torch's own walk, without its nested generators."""

from torch import nn


def modules_in(model: nn.Module) -> dict[str, nn.Module]:
    """What model.named_modules() gives: every module once, under its first path.

    torch's walk hands each module up through all the generators above it. A scan walks many times, and in small models
    that is a good part of its cost.
    """
    found: dict[str, nn.Module] = {}
    met: set[int] = set()
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        found[path] = module
        parts = module._modules.items()
        if parts:  # most have none
            inside = path + "." if path else ""
            waiting += [(inside + name, part) for name, part in reversed(list(parts)) if part is not None]
    return found
