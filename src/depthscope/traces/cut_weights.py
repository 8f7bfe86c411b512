"""Weights that are cut over processes (DTensor): by FSDP, which puts them together, or to compute in parts."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

from depthscope.traces.modules import modules_in

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
PARALLEL = "torch.distributed.tensor"  # where hooks of parallel plans are from
WHOLE: WeakSet[nn.Module] = WeakSet()  # models that run as one process runs them, for a while (whole_weights.py)
IN_ONE = (  # for the reader of a scan
    "processes share the weights and compute parts of a pass; for the scan each process ran the whole model, "
    "with the weights of one block put together at a time"
)


def is_cut(parameter: Any) -> bool:
    """Whether a tensor is cut over processes: a DTensor, asked without the import of torch.distributed.tensor."""
    return hasattr(parameter, "device_mesh")


def computes_in_parts(model: nn.Module) -> bool:
    """Whether processes compute parts of one pass (tensor- or sequence-parallel): none of them sees whole tokens.

    FSDP cuts weights too, and puts them together before they are used.
    """
    if model in WHOLE or not _cut_in(model):
        return False
    hooks = [hook for module in modules_in(model).values() for name in HOOKS for hook in getattr(module, name).values()]
    planned = any((getattr(hook, "__module__", None) or "").startswith(PARALLEL) for hook in hooks)
    return planned or not any(map(_is_fsdp, model.modules()))


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """What runs a model without its own hooks; with them where FSDP's must put the model's own weights together first.

    Inside a call of the model these are together already.
    """
    inside = {id(p) for m in model.modules() if m is not model and _is_fsdp(m) for p in m.parameters()}
    cut = any(is_cut(p) and id(p) not in inside for p in model.parameters())
    return model if cut and _is_fsdp(model) else model.forward


def shared_with(model: nn.Module) -> list[Any]:
    """The process groups over which weights of the model are cut."""
    meshes = {id(p.device_mesh): p.device_mesh for p in _cut_in(model)}
    return [mesh.get_group(dim) for mesh in meshes.values() for dim in range(mesh.ndim)]


def _cut_in(model: nn.Module) -> list[Any]:
    """The weights of a model that are cut."""
    return [p for module in modules_in(model).values() for p in module._parameters.values() if is_cut(p)]


def _is_fsdp(module: nn.Module) -> bool:
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def let_go_(model: nn.Module) -> None:
    """Give back what FSDP gathered for a forward pass that no backward pass followed.

    The root of a model stays gathered after its forward pass, for its backward pass. Left so, the next step would run
    on these weights, whatever the optimizer has done since.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
