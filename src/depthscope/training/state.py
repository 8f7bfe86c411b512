"""The numbers of a model and its optimizer by name: whole tensors on the CPU, wherever and however they are spread."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import CheckpointError


def weights_of(model: nn.Module, *, keep: bool = True) -> dict[str, Tensor]:
    """Parameters and buffers. All processes must call it, for each may hold a part; those with keep=False get {}."""
    return _whole(model.state_dict(), keep)


def moments_of(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool = True) -> dict[str, Tensor]:
    """What the optimizer remembers of every parameter, as "<parameter>.<quantity>"."""
    named = {name: optimizer.state[p] for name, p in model.named_parameters() if p in optimizer.state}
    assert len(named) == len(optimizer.state), "a parameter of the optimizer is not in the model: gathered by FSDP?"
    return _whole({f"{name}.{key}": value for name, own in named.items() for key, value in own.items()}, keep)


@torch.no_grad()
def put_back_(
    model: nn.Module, optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], moments: dict[str, Tensor]
) -> None:
    """Give a model and its optimizer the numbers that weights_of and moments_of took from others of the same build."""
    own = model.state_dict()
    strange = sorted(set(own) ^ set(weights))
    if strange:
        raise CheckpointError(
            f"checkpoint: it must have the model's tensors; {', '.join(strange[:3])} is in one of them only. "
            "It was written by another version of the model: use another folder."
        )
    for name, tensor in own.items():
        tensor.copy_(_spread(weights[name], tensor))
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for key, value in sorted(moments.items()):  # files give no order, and processes that exchange parts need one
        name, _, quantity = key.rpartition(".")
        parameter = parameters[name]
        spread = _spread(value, parameter) if value.shape == parameter.shape else value.to(parameter.device)
        optimizer.state[parameter][quantity] = spread


def _whole(tensors: dict[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """One after another, so that a process never holds a second model on its device."""
    kept = {}
    for name, tensor in tensors.items():
        gather: Any = getattr(tensor, "full_tensor", None)  # of a DTensor
        tensor = tensor.detach() if gather is None else gather().detach()
        if keep:
            kept[name] = tensor.cpu().clone()
    return kept


def _spread(tensor: Tensor, like: Any) -> Tensor:
    """A whole tensor on the device of another, cut as that is."""
    tensor = tensor.to(like.device)
    if not hasattr(like, "device_mesh"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)
