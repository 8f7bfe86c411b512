"""Sums over the processes that share a sequence, with gradients; and whether they do share one."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.traces.cut_weights import is_cut

APART = 1e-4  # of the length of all tokens: what copies of them differ by, with rounding, is less


class _Sum(torch.autograd.Function):
    """y = sum_r x_r on every process; the loss is the sum of all processes' losses, so dx_r = sum_s dy_s."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _all_reduced(x, group)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor, None]:
        return _all_reduced(dy[0], ctx.group), None


def _all_reduced(x: Tensor, group: Any) -> Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y, group=group)
    return y


def sum_over_group(x: Tensor, group: Any) -> Tensor:
    """sum_r x_r, over the processes r of the group."""
    return _Sum.apply(x, group)


def earlier_in_group(x: Tensor, group: Any) -> Tensor:
    """sum_{r < own rank} x_r. One sum over the group, in which every process fills a row of its own."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    row = (torch.arange(size, device=x.device) == rank).view(-1, *(1,) * x.ndim)
    return sum_over_group(torch.where(row, x, torch.zeros_like(x)), group)[:rank].sum(0)


def check_whole(tokens: Tensor, groups: list[Any]) -> None:
    """Raise UsageError where processes hold different tokens: a part of a sequence is not to be taken for all of it."""
    parts = is_cut(tokens)
    if not parts:
        flat = tokens.detach().flatten().double()
        own = (float(flat.norm()), float(flat @ torch.arange(len(flat), dtype=flat.dtype, device=flat.device).cos()))
        for group in groups:
            found: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(found, own, group=group)
            parts |= any(abs(a - b) > APART * own[0] for other in found for a, b in zip(own, other, strict=True))
    if parts:
        raise UsageError(
            "all tokens of a sequence must be at hand; processes hold parts of it (sequence-parallel). Pass group= "
            "with the torch.distributed group that shares it, and use local outputs (use_local_output=True)."
        )
