"""What fix_ and without_ have put into a model, read off its hooks."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from depthscope.traces.inputs import fresh
from depthscope.traces.modules import modules_in
from depthscope.traces.untouched import untouched

OWN = "depthscope_"  # how the names of modules begin that fix_ adds to a model


def fixes_in(model: nn.Module) -> list[Any]:
    """The handles of all that was put into the model, in the order in which it was."""
    found = _owners(model)
    if any(fix.asleep for fix in found):  # it came with a copy: it takes all that are there with it
        found[0].wake_all(model)
        found = _owners(model)
    return found


def _owners(model: nn.Module) -> list[Any]:
    hooked = [module._forward_pre_hooks for module in modules_in(model).values() if module._forward_pre_hooks]
    hooks = [hook for hooks in hooked for hook in hooks.values()]
    owners = dict.fromkeys(getattr(hook, "depthscope_fix", None) for hook in hooks)
    return [owner for owner in owners if owner is not None]


def prepare_fixes(model: nn.Module, args: tuple, kwargs: Mapping[str, Any], but: Any = None) -> None:
    """Let every change survey its model before anybody else watches it. but: one that is at it already.

    A change of a part of the model learns its arguments from a pass of the whole.
    """
    met: list[Any] = [but]
    while waiting := [fix for fix in fixes_in(model) if fix not in met]:  # one may make others, for other streams
        fix = waiting[0]
        met.append(fix)
        if fix.model is model:
            fix.prepare(args, kwargs)
        elif not fix.prepared:
            with untouched(model), torch.no_grad():
                given, named = fresh(args, kwargs)
                model(*given, **named)
