"""What a training of ours logs of every block, from time to time: how alike tokens are, and the gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.monitors.probe import CURVES, Probe


def measured(probe: Probe, step: int, total: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, Any]:
    """{step, t_sim, t_div (depth + 1 values each), gradient_norm (depth)}; call it when .grad is there.

    The weights are those with which the step began, the gradients those that came of them. total: adds a tensor up over
    all processes.
    """
    seen = probe.scan()
    curves = {name: seen[name].tolist() for name in CURVES}
    return {"step": step, **curves, "gradient_norm": gradient_norms(probe.model, seen.block_names, total)}


def gradient_norms(model: nn.Module, blocks: list[str], total: Callable[[Tensor], Tensor]) -> list[float]:
    """The norm of .grad over all parameters of each block; where these are cut over processes, of the whole."""
    by_path: dict[str, list[Tensor]] = {path: [] for path in blocks}
    spread = False
    for name, parameter in model.named_parameters():
        path = next((path for path in blocks if name.startswith(f"{path}.")), None)
        if path is not None and parameter.grad is not None:
            local: Any = getattr(parameter.grad, "to_local", None)  # of a DTensor
            spread = spread or local is not None
            by_path[path].append(parameter.grad if local is None else local())
    nothing = torch.zeros((), dtype=torch.float64)
    squares = torch.stack(  # on the CPU, for some devices have no float64
        [sum((torch.linalg.vector_norm(g.cpu().double()).square() for g in own), nothing) for own in by_path.values()]
    )
    return (total(squares) if spread else squares).sqrt().tolist()
