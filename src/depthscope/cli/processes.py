"""Processes that torchrun started, as one command: each takes its part of the inputs, and the first one reports."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from depthscope.errors import UsageError


@contextmanager
def together(model: Any) -> Iterator["Together"]:
    """This process among those of torchrun, for the time of a command; alone where there is one.

    The model is made before: its function may have met the other processes already, to cut weights over them.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Together(0, 1)
        return
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    cut = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())  # every batch needs all processes
    try:
        yield Together(dist.get_rank(), 1 if cut else size)
    finally:
        leave_the_others()


class Together:
    """rank: the number of this process. size: how many share the inputs; 1 where each is given all of them."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @property
    def reports(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    @property
    def across(self) -> str | None:
        return None if self.size == 1 else "world"

    def part(self, given: Any) -> Any:
        """The sequences of one batch, or the batches of many, that are for this process."""
        return given if self.size == 1 else part_of(given, self.rank, self.size)


def part_of(given: Any, rank: int, size: int) -> Any:
    """Rows `rank` of `size` equal parts of a batch; of an iterable of batches every `size`-th, from `rank` on."""
    import torch

    if isinstance(given, torch.Tensor | tuple | Mapping):
        values = list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, tuple) else [given]
        tensors = [value for value in values if isinstance(value, torch.Tensor) and value.ndim]
        rows = len(tensors[0]) if tensors else 0
        _check_batch_first(tensors)
        if rows < size:
            raise UsageError(
                f"every process must have a sequence; got {rows} for {size} processes. Give more (--batch), or start "
                "fewer processes."
            )

        def cut(value: Any) -> Any:
            whole = not isinstance(value, torch.Tensor) or value.ndim == 0 or len(value) != rows
            return value if whole else value.tensor_split(size)[rank]

        if isinstance(given, Mapping):
            return {name: cut(value) for name, value in given.items()}
        return tuple(map(cut, given)) if isinstance(given, tuple) else cut(given)
    return islice(given, rank, None, size) if isinstance(given, Iterable) else given


def _check_batch_first(tensors: list[Any]) -> None:
    """Raise UsageError unless the first axis can only be the batch: ids (B, n), images (B, C, H, W)."""
    first = tensors[0] if tensors else None
    if first is None:
        return
    told = (first.ndim == 2 and not first.is_floating_point()) or first.ndim == 4
    square = any(t.ndim > 1 and t.shape[0] == t.shape[1] == len(first) for t in tensors)
    if not told or square:
        raise UsageError(
            f"the sequences of one batch are shared out by its first axis; which axis that is, {tuple(first.shape)} "
            "does not tell. Let --inputs return a list of batches: each process takes its own."
        )


def leave_the_others() -> None:
    """End the group of processes, if there is one: torch complains about those that just go."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
