"""Measures tokens and gradients of every block while a model trains; the training does not notice it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.scans.scan import scan


class Monitor:
    """Logs every `every` steps, and the first and the last: token similarity, diversity, gradient norms.

    model: the bare one, not what wraps it. inputs: a fixed probe batch. total: adds a tensor up over all processes.
    """

    def __init__(
        self, model: nn.Module, inputs: Any, every: int, *, total: Callable[[Tensor], Tensor] = lambda sums: sums
    ) -> None:
        self.model, self.inputs, self.every, self.total = model, inputs, every, total

    def due(self, step: int, last: int) -> bool:
        """Whether a step is to be logged."""
        return step in (0, last) or (self.every > 0 and step % self.every == 0)

    def measure(self, step: int) -> dict[str, Any]:
        """{step, t_sim, t_div (depth + 1 values each), gradient_norm (depth)}; call it when .grad is there.

        The weights are those with which the step began, the gradients those that came of them.
        """
        seen = scan(self.model, self.inputs, metrics=("t_sim", "t_div"), attention=False)
        return {
            "step": step,
            "t_sim": seen["t_sim"].tolist(),
            "t_div": seen["t_div"].tolist(),
            "gradient_norm": gradient_norms(self.model, seen.block_names, self.total),
        }


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
