"""accelerate set up for one run: device, precision, processes, trackers; and what they have to agree on."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from depthscope.errors import MissingExtraError, UnknownNameError, UsageError
from depthscope.extras import install
from depthscope.registry import unknown
from depthscope.traces.installed import OWN
from depthscope.training.recipe import Recipe

WAYS = ("ddp", "fsdp")


@contextmanager
def accelerated(
    recipe: Recipe, *, parallel: str, processes: int | None, log_with: str | None, folder: Path | None
) -> Iterator[Any]:
    """An Accelerator for the time of a run. Its state is global; here it ends with the run, so that another can begin.

    processes: how many the user started; fewer would train another model than was meant, without a word.
    """
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState
        from accelerate.utils import ProjectConfiguration
    except ImportError:
        raise MissingExtraError(f"train: needs accelerate. {install('train')}") from None
    if parallel not in WAYS:
        raise UnknownNameError("train: " + unknown("way to train in parallel", parallel, WAYS))
    if log_with is not None and folder is None:
        raise UsageError(f"train: a tracker must have a folder to write to; got log_with={log_with!r}. Give folder=.")
    if log_with is not None:
        _check_tracker(log_with)
    plugin = _sharding() if parallel == "fsdp" else None
    cpu = not torch.accelerator.is_available()  # accelerate takes CPU processes together only when told so
    processes_only = PartialState(cpu)
    kind = processes_only.distributed_type
    accelerator = Accelerator(
        cpu=cpu,
        mixed_precision=recipe.precision,
        gradient_accumulation_steps=recipe.accumulate,
        fsdp_plugin=plugin,
        log_with=log_with,
        project_config=None if folder is None else ProjectConfiguration(str(folder), logging_dir=str(folder)),
    )
    try:
        check_processes(accelerator.num_processes, processes)
        if plugin is not None:
            _shard_on_any_device(accelerator, plugin)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Grad strides do not match")  # DDP of the cls token's axes of length 1
            yield accelerator
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()
        AcceleratorState._reset_state()
        processes_only.distributed_type = kind  # FSDP would be taken for the next run's way too


def prepared(accelerator: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
    """What runs the model on all processes, and its optimizer; hooks of remedies stay on the model itself.

    What remedies learn is a few numbers, some of them scalars, which FSDP cannot cut: every process keeps them all.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None:
        plugin.ignored_modules = [child for name, child in model.named_children() if name.startswith(OWN)]
    return accelerator.prepare(model, optimizer)


def check_processes(found: int, asked: int | None) -> None:
    """Raise UsageError unless as many processes train together as were started, and as were asked for."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if found != started or asked not in (None, found):
        raise UsageError(
            f"train: {asked or started} processes must train together; {found} do (WORLD_SIZE is {started}). Start "
            f"them with: torchrun --nproc-per-node {asked or started} -m depthscope train ... "
            "(On CPUs accelerate launch runs one process without saying so.)"
        )


def _check_tracker(name: str) -> None:
    """accelerate leaves out trackers that are not installed without a word."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        raise UnknownNameError("train: " + unknown("tracker", name, LOGGER_TYPE_TO_CLASS))
    if name not in map(str, get_available_trackers()):
        raise MissingExtraError(f"train: the tracker {name} is not installed. pip install {name}")


def _sharding() -> Any:
    """FSDP2, block by block."""
    from accelerate import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        reshard_after_forward=True,
        cpu_ram_efficient_loading=False,
    )


def _shard_on_any_device(accelerator: Any, plugin: Any) -> None:
    """accelerate 1.15 takes FSDP on accelerators only and makes it DDP on CPUs without a word: say it in its place."""
    from accelerate.utils import DistributedType

    if accelerator.distributed_type != DistributedType.MULTI_CPU:
        return
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
