"""Norms of the gradients of a loss with respect to weights."""

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.traces.whole_weights import are_away


def check_at_hand(model: nn.Module) -> None:
    """Raise UsageError where weights are elsewhere: autograd would not know them, and say nothing."""
    if are_away(model):
        raise UsageError(
            "gradients= needs the weights of the model at hand; some are offloaded, or cut over processes, and their "
            "gradients would be missing. Scan without it, or load the model whole."
        )


def weight_gradients(model: nn.Module, loss: Tensor) -> dict[str, float]:
    """Squared gradient norm of each parameter, by its path; .grad is not touched."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = type(loss).__name__
        if isinstance(loss, Tensor):
            got = f"shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
        raise UsageError(
            f"gradients must be a function of the model's output that returns a scalar loss; got {got}. "
            "Try gradients=lambda out: out.last_hidden_state.square().mean()."
        )
    named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
    found = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    return {
        name: float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2
        for (name, _), g in zip(named, found, strict=True)
        if g is not None
    }
