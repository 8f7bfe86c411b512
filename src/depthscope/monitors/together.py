"""Processes that train together: all know what each has seen, so that all warn, stop or go on alike."""

from typing import Any

import torch.distributed as dist

from depthscope.errors import UsageError


def group_of(across: Any) -> Any:
    """The process group; None where this process is alone."""
    if across is None or not dist.is_available() or not dist.is_initialized():
        return None
    if across == "world":
        return dist.group.WORLD if dist.get_world_size() > 1 else None
    if not isinstance(across, dist.ProcessGroup):
        raise UsageError(
            f'across must be "world", a torch.distributed group or None (alone); got {type(across).__name__}.'
        )
    return across


def told_by_all(own: Any, group: Any) -> list[Any]:
    """What every process of a group says, by rank; all of them must call."""
    if group is None:
        return [own]
    said: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(said, own, group=group)
    return said


def is_first(group: Any) -> bool:
    """Whether this process is the one that speaks."""
    return group is None or dist.get_rank(group) == 0
