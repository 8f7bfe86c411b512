"""The scale gamma of a norm, read off what it does: some keep 1 + weight, some have no weight at all."""

import torch
from torch import Tensor, nn

from depthscope.circuits.wide import wide
from depthscope.errors import HookError
from depthscope.traces.watcher import unwatched

LARGE = {torch.float16: 64.0}  # beside which epsilon does not count, and whose square is a number; others: 1e3


def norm_scale(norm: nn.Module) -> Tensor:
    """gamma (d,) of y = gamma * x / size(x) + beta, with or without centring.

    x = c (1, -1, 1, ...) has mean 0 and every entry of one size, so that gamma = (y(x) - y(-x)) / 2 * sign(x). Where
    this depends on c, the norm does not divide by the size of its tokens, and that is an error.
    """
    widths = {p.shape[-1] for p in norm.parameters() if p.ndim == 1} or {s[-1] for s in _shapes(norm)}
    if len(widths) != 1 or next(iter(widths)) % 2:
        raise HookError(
            f"the scale of a norm must be read from one even width; {type(norm).__name__} has "
            f"{sorted(widths) or 'none'}. Its blocks cannot be judged."
        )
    first = next(iter(norm.parameters()), torch.zeros(1))
    signs = torch.ones(next(iter(widths)), dtype=first.dtype, device=first.device)
    signs[1::2] = -1

    def read(size: float) -> Tensor:
        both = [wide(norm.forward(c * signs.expand(1, 1, -1))).flatten() for c in (size, -size)]
        return (both[0] - both[1]) / 2 * wide(signs)

    with unwatched(), torch.no_grad():
        gamma, small = read(LARGE.get(first.dtype, 1e3)), read(1.0)
    if not bool((gamma - small).abs().max() <= 1e-2 * gamma.abs().max()):
        raise HookError(
            f"a norm must divide by the size of its tokens; {type(norm).__name__} gives other numbers for "
            "longer ones. Its blocks cannot be judged."
        )
    return gamma


def _shapes(norm: nn.Module) -> list[tuple[int, ...]]:
    shape = getattr(norm, "normalized_shape", None)
    return [tuple(shape)] if shape is not None else []
