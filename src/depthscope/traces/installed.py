"""What fix_ and without_ have put into a model, read off its hooks."""

from typing import Any

from torch import nn

OWN = "depthscope_"  # how the names of modules begin that fix_ adds to a model


def fixes_in(model: nn.Module) -> list[Any]:
    """The handles of all that was put into the model, in the order in which it was."""
    hooks = [hook for module in model.modules() for hook in module._forward_pre_hooks.values()]
    return list(dict.fromkeys(hook.depthscope_fix for hook in hooks if hasattr(hook, "depthscope_fix")))
