"""Sums over the processes that share a sequence, with gradients."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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
