"""Training against the encoders of torch and x-transformers, and what the monitor costs.

OMP_NUM_THREADS=1 python benchmarks/training.py
"""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from _ratio import line, ratio
from torch import nn

from depthscope.monitors.probe import Probe
from depthscope.training.build import Build
from depthscope.training.data.images import make_task
from depthscope.training.measured import measured
from depthscope.training.parallel import accelerated
from depthscope.training.recipe import Recipe
from depthscope.training.step import Stepper
from depthscope.training.tasks import ImageTask, Split

ROUNDS = 15
EVERY = 50  # steps between two looks of the monitor
SIZES = {  # what it is called: model, images (channels, side, patch), batch
    "24 blocks on digits": (Build(depth=24, d=32, h=4, q=64), (1, 8, 2), 64),
    "12 blocks of Table 1": (Build(depth=12, d=192, h=8, q=384), (3, 32, 4), 16),
}


def noise(channels: int, side: int, patch: int, count: int = 64) -> ImageTask:
    """Images of a size, without anything to learn: the time is the same."""
    split = Split(torch.rand(count, channels, side, side), torch.randint(0, 10, (count,)))
    return make_task("noise", split, split, split, classes=10, patch=patch)


def torchs_own(model: Any, build: Build) -> nn.Module:
    """The same ViT with nn.TransformerEncoder for its blocks: post-norm, ReLU, no dropout, but biases for q, k, v."""
    layer = nn.TransformerEncoderLayer(build.d, build.h, build.q, dropout=0.0, batch_first=True)
    model.transformer = nn.TransformerEncoder(layer, build.depth, enable_nested_tensor=False)
    return model


def x_transformers(model: Any, build: Build) -> nn.Module:
    """The same ViT with x-transformers' encoder: post-norm, ReLU, no dropout, its flash attention, no biases."""
    from x_transformers import Encoder

    model.transformer = Encoder(
        dim=build.d, depth=build.depth, heads=build.h, attn_dim_head=build.d // build.h, attn_flash=True,
        ff_mult=build.q / build.d, ff_relu_squared=False, ff_custom_activation=nn.ReLU(), ff_no_bias=True,
        pre_norm=False,
    )  # fmt: skip
    return model


@contextmanager
def stepper(
    build: Build, task: ImageTask, batch: int, change: Callable[..., nn.Module] = lambda model, build: model
) -> Any:
    """The loop's own step on a model: (stepper, a function that takes one step)."""
    recipe = Recipe(batch=batch)
    with accelerated(recipe, parallel="ddp", processes=None, log_with=None, folder=None) as accelerator:
        model = change(build.model(task, seed=0)[0], build)
        one = Stepper(accelerator, model, recipe, task)

        def step() -> None:
            one.update(0)
            one.gradient(0)  # last, so that there is a gradient for the monitor to look at

        one.gradient(0)
        yield one, step


def against_torch() -> None:
    """Steps per second of ours over those of torch's, both in the loop of depthscope train."""
    for name, (build, image, batch) in SIZES.items():
        task = noise(*image)
        with stepper(build, task, batch) as (_, ours), stepper(build, task, batch, torchs_own) as (_, theirs):
            times, seconds = ratio(theirs, ours, ROUNDS)
        line(f"ViT, {name}: steps/s over nn.TransformerEncoder", times, "least 1.0", f"ours {1 / seconds:.2f} steps/s")


def against_x_transformers() -> None:
    """Steps per second of ours over those of x-transformers, both in the loop of depthscope train."""
    for name, (build, image, batch) in SIZES.items():
        task = noise(*image)
        with stepper(build, task, batch) as (_, ours), stepper(build, task, batch, x_transformers) as (_, theirs):
            times, seconds = ratio(theirs, ours, ROUNDS)
        line(f"ViT, {name}: steps/s over x-transformers", times, "least 1.0", f"ours {1 / seconds:.2f} steps/s")


def of_the_monitor() -> None:
    """Time of EVERY steps and one look over that of the steps alone."""
    for name, (build, image, batch) in SIZES.items():
        task = noise(*image)
        with stepper(build, task, batch) as (one, step):
            probe = Probe(one.bare, task.probe(one.accelerator.device), EVERY)
            looks, seconds = ratio(partial(measured, probe, 0), step, ROUNDS)
        line(
            f"ViT, {name}: monitor every {EVERY} steps / none", 1 + looks / EVERY, "most 1.03", f"step {seconds:.3f} s"
        )


if __name__ == "__main__":
    against_torch()
    against_x_transformers()
    of_the_monitor()
