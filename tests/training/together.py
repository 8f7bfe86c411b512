"""Run by torchrun: trains each case with all processes and writes what the first one saw.

torchrun --standalone --nproc-per-node 2 together.py out.json
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from tiny import BUILD, RECIPE, tiny_task, tiny_text

from depthscope.errors import UsageError
from depthscope.training.loop import train
from depthscope.training.run import Run
from depthscope.training.tasks import Task

LEARNED = replace(BUILD, remedy="de_escalate", remedy_settings={"tau": 0.5, "learnable": True})
CASES = {
    "plain": (BUILD, RECIPE),
    "remedy": (replace(BUILD, remedy="de_escalate", remedy_settings={"tau": 1.0}), RECIPE),
    "learned": (LEARNED, replace(RECIPE, clip=0.1, accumulate=2)),
    "attention": (replace(BUILD, remedy="centred_attention"), replace(RECIPE, epochs=1)),
    "inside": (replace(BUILD, remedy="de_escalate", at="ffn_in"), replace(RECIPE, epochs=1)),
    "text": (replace(BUILD, remedy="de_escalate", at="ffn_in"), replace(RECIPE, batch=5, accumulate=2)),
}
IMAGES = 49  # three batches of 16 and one of a single image: one of two processes has none


def data(name: str) -> Task:
    return tiny_text() if name == "text" else tiny_task(IMAGES)


def stopped_and_resumed(way: str, folder: Path) -> list[Run]:
    """The first process alone is asked to stop after five steps; then both go on."""

    def ask(done: int, *_: float) -> None:
        if done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    build, recipe = CASES["learned"]
    return [train(build, tiny_task(IMAGES), recipe, parallel=way, folder=folder, progress=told) for told in (ask, None)]


def main(out: Path) -> None:
    torch.set_num_threads(1)
    records = {}
    for way in ("ddp", "fsdp"):
        for name, (build, recipe) in CASES.items():
            folder = out.parent / f"{way}_{name}"
            run = train(build, data(name), recipe, parallel=way, processes=2, folder=folder)
            records[f"{way} {name}"] = run.to_dict()
    for way in ("ddp", "fsdp"):
        records[f"{way} stopped"] = [run.to_dict() for run in stopped_and_resumed(way, out.parent / f"{way}_stopped")]
    try:
        train(BUILD, tiny_task(), RECIPE, processes=3)
    except UsageError as error:
        records["three"] = str(error)
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(records))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
