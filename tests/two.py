"""Two gloo processes that run a function each, with what they give back: for tests of scans that processes share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2


def in_two_processes(function: Callable[..., Any], folder: Path, *args: Any) -> list[Any]:
    """What function(rank, *args) gives on each of two processes, by rank; an error is given back as one."""
    mp.spawn(_one, (str(folder), function, args), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(WORLD)]


def _one(rank: int, folder: str, function: Callable[..., Any], args: tuple) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    assert dist.get_world_size() == WORLD
    torch.save(function(rank, *args), Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads now and then abort a process on its regular way out; what is tested is in the files
