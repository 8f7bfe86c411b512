"""train: one model on one task by one recipe; killed at any moment, it goes on to the same end."""

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import DamagedError, UsageError
from depthscope.files import check_writable
from depthscope.training.build import Build
from depthscope.training.checkpoint import refuse_other_settings
from depthscope.training.lock import lock_or_refuse
from depthscope.training.parallel import accelerated
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.session import RECORD, Session
from depthscope.training.stopping import Stop

Progress = Callable[[int, int, float, float], None]  # steps done, steps in all, loss, t_sim after the last block


def train(
    build: Build,
    task: Any,
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    every_steps: int | None = None,
    progress: Progress | None = None,
    on_log: Callable[[dict[str, Any]], None] | None = None,
    parallel: str = "ddp",
    processes: int | None = None,
    log_with: str | None = None,
    lock: bool = True,
) -> Run:
    """Train a model and return the record of it.

    folder: checkpoints, every every_steps steps (None: after every epoch that is evaluated), and run.json go there. A
    run that is there goes on where it was, to the very same numbers; one that has ended is returned; one with other
    settings is refused. on_log is told of every measurement by the monitor and every evaluation.
    parallel: "ddp" or "fsdp", under torchrun; processes: how many must train together, an error otherwise.
    log_with: a tracker by its name in accelerate, as "tensorboard".
    lock: refuse a folder in which another process trains; False for a caller that holds its lock already.
    """
    if every_steps is not None and every_steps < 1:
        raise UsageError(f"train: every_steps must be 1 or more, or None; got {every_steps}.")
    run, place = Run(build, recipe, task.name, task.fingerprint), None if folder is None else Path(folder)
    earlier = None if place is None else _earlier(place / RECORD)
    if earlier is not None:
        refuse_other_settings(place, earlier, run)
        if earlier.ended and os.environ.get("WORLD_SIZE", "1") == "1":  # several must first agree on what they see
            return earlier
    if place is not None:
        check_writable(place / RECORD)
    with ExitStack() as stack:
        accelerator = stack.enter_context(
            accelerated(recipe, parallel=parallel, processes=processes, log_with=log_with, folder=place)
        )
        if place is not None and lock and accelerator.is_main_process:
            stack.enter_context(lock_or_refuse(place))
        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))  # the user's random numbers are his own
        return Session(accelerator, run, task, place, every_steps, progress, on_log).go_on(stack.enter_context(Stop()))


def _earlier(path: Path) -> Run | None:
    """The record of an earlier training; None where there is none, or a damaged one, which checkpoints make good."""
    if not path.exists():
        return None
    try:
        return Run.load(path)
    except DamagedError as error:
        warnings.warn(f"the training continues from its checkpoints, if there are any: {error}", stacklevel=3)
        return None
