"""A job: one model trained once, in a process of its own. python -m depthscope.training.job FOLDER/job.json PARENT"""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import depthscope
from depthscope.errors import RecordError, UsageError
from depthscope.files import POSIX, through_no_link, whole_file
from depthscope.training import checkpoint
from depthscope.training.build import Build
from depthscope.training.lock import lock
from depthscope.training.loop import RECORD, train
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks import task as load_task

FORMAT = "depthscope.job"
VERSION = 3  # 1 did not say keep, 2 no fingerprint
# folders that have no part in a training
NO_PART = ("reports", "experiments", "gates", "checkups", "benches", "integrations", "cli")
JOB, STEPS, ERRORS = "job.json", "steps.txt", "errors.txt"  # in the folder of a job: what to do, how far it is, why not
LOOK = 0.5  # seconds between two looks whether somebody still waits for the result
GRACE = 15.0  # seconds that a process has to write its checkpoint when it must stop
STOPPED, BUSY = 3, 4  # exit codes: stopped on the way; another process is at it


@dataclass(frozen=True, eq=False)
class Job:
    """What to train and where. label: for people. options: of the task, plain data. keep: the weights at the end.

    fingerprint: of the data that it was planned for; "" for any.
    """

    label: str
    folder: Path
    task: str
    options: dict[str, Any]
    build: Build
    recipe: Recipe
    keep: bool = False
    fingerprint: str = ""

    def write(self) -> Path:
        """The file that the process reads; returns its path."""
        settings = {"task": self.task, "options": self.options, "keep": self.keep, "fingerprint": self.fingerprint}
        record = {"format": FORMAT, "version": VERSION, "label": self.label, **settings}
        record |= {"build": self.build.to_dict(), "recipe": self.recipe.to_dict()}
        path = self.folder / JOB
        with whole_file(path) as part:
            part.write_text(json.dumps(record, indent=1, default=str))
        return path

    @classmethod
    def read(cls, path: str | Path) -> "Job":
        path = Path(path)
        try:
            record = json.loads(path.read_text())
            if (record["format"], record["version"]) != (FORMAT, VERSION):
                raise ValueError(f"got {record['format']!r} {record['version']!r}")
            build, recipe = Build(**record["build"]), Recipe(**record["recipe"])
            task, rest = (record["task"], record["options"]), (record["keep"], record["fingerprint"])
            return cls(record["label"], path.parent, *task, build, recipe, *rest)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RecordError(
                f"{path}: must be a job of format {FORMAT!r}, version {VERSION}; {error}. "
                "Let depthscope compare write it."
            ) from None

    def ended(self) -> Run | None:
        """The record of the run, when there is nothing left to do."""
        try:
            run = Run.load(self.folder / RECORD)
        except RecordError:  # none yet, or a damaged one: the process that takes the job up will say which
            return None
        return run if run.ended else None


def key(*settings: Any) -> str:
    """A short name for settings and code: others have other folders, and nothing is mistaken for done."""
    named = json.dumps([code(), *settings], sort_keys=True, default=str)
    return hashlib.sha256(named.encode()).hexdigest()[:8]


@cache
def code() -> str:
    """A name for the code that decides what a training computes: the version, and a hash of the sources."""
    root = Path(depthscope.__file__).parent
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return f"{depthscope.__version__} {digest.hexdigest()}"


def sources() -> list[Path]:
    """All files of depthscope but those of the folders that have no part in a training."""
    root = Path(depthscope.__file__).parent
    return sorted(path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in NO_PART)


def do(job: Job) -> Run:
    """Train, on one thread, and tell in STEPS how far it is. A run that was stopped goes on. The lock of the folder is
    ours."""
    import torch

    torch.set_num_threads(1)
    with open(job.folder / STEPS, "w", opener=through_no_link) as steps:
        tell, task = _telling(steps), load_task(job.task, **job.options)
        if job.fingerprint not in ("", task.fingerprint):
            raise UsageError(
                f"{job.label}: the data must be the plan's, {job.fingerprint}; here they are {task.fingerprint}. "
                "Give all workers the same files."
            )
        run = train(job.build, task, job.recipe, folder=job.folder, progress=tell, lock=False)
    if run.ended and not job.keep:  # a comparison is of numbers; the weights of all its runs would fill a disk
        for folder in checkpoint.folders(job.folder):
            shutil.rmtree(folder, ignore_errors=True)
    return run


def _telling(steps: Any) -> Callable[[int, int, float, float], None]:
    def tell(done: int, total: int, loss: float, t_sim: float) -> None:
        print(done, total, loss, t_sim, file=steps, flush=True)

    return tell


def _ends_with(parent: int) -> None:
    """Watch the process that started us: when it is gone, nobody reads the result, and we stop as if asked to.

    A thread, for a process may be told at any moment: while it imports, loads data, evaluates, or hangs.
    """
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(STOPPED)


def main(path: str) -> int:
    """Exit code 0 when the run has ended, else STOPPED or BUSY."""
    job = Job.read(path)
    held = lock(job.folder)
    if held is None:
        return BUSY
    with held:
        run = do(job)
    if not run.ended:
        print(f"{run.status}: {run.reason}", file=sys.stderr)
    return 0 if run.ended else STOPPED


if __name__ == "__main__":
    if POSIX:
        threading.Thread(target=_ends_with, args=(int(sys.argv[2]),), daemon=True).start()
    sys.exit(main(sys.argv[1]))
