"""A trainer killed at any moment goes on to the same end, bit for bit."""

import multiprocessing
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import BUILD, RECIPE, tiny_task, tiny_text

from depthscope.training.loop import train
from depthscope.training.run import Run
from depthscope.training.tasks import Task
from loops import over

PRELOADED = ["depthscope.training.loop", "depthscope.training.tasks", "accelerate", "kornia.augmentation", "pytest"]
PRELOADED += ["torch._dynamo", "safetensors.torch"]
EPOCHS, STEPS, KILLS = 6, 24, 5
CASES = {
    "augmented": (BUILD, replace(RECIPE, epochs=EPOCHS, augment="flip_crop", accumulate=2, log_every=5)),
    "learned": (
        replace(BUILD, remedy="de_escalate", remedy_settings={"tau": 0.5, "learnable": True}),
        replace(RECIPE, epochs=EPOCHS, clip=0.5, warmup=7),
    ),
    "remembering": (replace(BUILD, remedy="de_escalate", at="ffn_in"), replace(RECIPE, epochs=EPOCHS, batch=5)),
}


def data(case: str) -> Task:
    return tiny_text() if case == "remembering" else tiny_task()


def trains(case: str, folder: str) -> None:
    torch.set_num_threads(1)
    build, recipe = CASES[case]
    train(build, data(case), recipe, folder=folder, every_steps=1)


def steps_kept(folder: Path) -> int:
    return max((int(path.name.removeprefix("step_")) for path in folder.glob("step_*")), default=0)


@pytest.mark.long
@over("case", CASES)
def test_killed_at_random_moments_it_ends_the_same(tmp_path: Path, case: str) -> None:
    """A checkpoint is written after every step, so that many of the kills meet one half written."""
    trains(case, str(tmp_path / "whole"))
    whole = Run.load(tmp_path / "whole" / "run.json")
    context = multiprocessing.get_context("forkserver")  # imports once; every trainer is a fork of that
    context.set_forkserver_preload(PRELOADED)
    draw = random.Random(case)
    for least in sorted(draw.sample(range(STEPS - 6), KILLS)):
        trainer = context.Process(target=trains, args=(case, str(tmp_path / "killed")))
        trainer.start()
        until = time.monotonic() + 120
        while steps_kept(tmp_path / "killed") < least:
            assert trainer.is_alive() and time.monotonic() < until
            trainer.join(0.001)
        trainer.join(draw.uniform(0, 0.03))
        assert trainer.is_alive()
        trainer.kill()  # SIGKILL
        trainer.join()
        assert trainer.exitcode == -signal.SIGKILL
    trains(case, str(tmp_path / "killed"))
    run = Run.load(tmp_path / "killed" / "run.json")
    assert run.status == "done" and run.notes == []
    for name in ("history", "evaluations", "logs", "final"):
        assert getattr(run, name) == getattr(whole, name), name
    last = f"step_{STEPS:06d}"
    for file in ("model.safetensors", "optimizer.safetensors", "memory.safetensors"):
        ended, expected = (load_file(tmp_path / way / last / file) for way in ("killed", "whole"))
        assert ended.keys() == expected.keys() and all(torch.equal(ended[k], expected[k]) for k in expected)


@over("case", ["remembering"], long=["learned"])
def test_every_single_checkpoint_leads_to_the_same_end(tmp_path: Path, case: str) -> None:
    """Stopped after each step in turn, as many runs as steps."""
    build, recipe = CASES[case][0], replace(CASES[case][1], epochs=2)
    whole = train(build, data(case), recipe)

    def copy(done: int, *_: float) -> None:
        if (tmp_path / "run").exists():
            shutil.copytree(tmp_path / "run", tmp_path / f"{done}")

    train(build, data(case), recipe, folder=tmp_path / "run", every_steps=1, progress=copy)
    for done in (2, 4, 5, 8):
        run = train(build, data(case), recipe, folder=tmp_path / f"{done}")
        assert run.history == whole.history and run.final == whole.final
