"""The modules that are told of when the flow of a pass is followed: the same in a scan, a survey and a changed pass."""

import re
from collections.abc import Iterator

import torch
from torch import nn

from depthscope.traces.installed import OWN
from depthscope.traces.modules import has_parts, modules_in
from depthscope.traces.operations import is_norm

UNCALLED = (torch.jit.ScriptModule, nn.ModuleList, nn.ModuleDict)
_NUMBER = re.compile(r"\d+")


def followed_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The model, its norms, modules with parts or weights of their own, and what is in lists that nobody calls."""
    inside = tuple(path + "." for path in uncalled_lists(model))
    for path, module in modules_in(model).items():
        if isinstance(module, UNCALLED) or path.startswith(OWN):
            continue  # they take no hooks of this kind, or are never called
        if has_parts(module) or is_own_leaf(module) or is_norm(module) or not path or path.startswith(inside):
            yield path, module


def uncalled_lists(model: nn.Module) -> list[str]:
    """Entries of lists that are lists themselves, as in x-transformers: nobody calls them, but what is in them."""
    lists = [path for path, module in modules_in(model).items() if isinstance(module, nn.ModuleList)]
    return [path for path in lists if _NUMBER.search(path.rpartition(".")[2])]


def is_own_leaf(module: nn.Module) -> bool:
    """A module without children that keeps bare parameters and is not one of torch's own layers."""
    return not type(module).__module__.startswith("torch.nn") and any(
        p is not None and p.ndim >= 2 for p in module._parameters.values()
    )
