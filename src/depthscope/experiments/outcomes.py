"""Which designs train at which rate: short runs of drawn designs on a ladder of rates, and the table that they give.

Runs are jobs of compare's pool, each in a folder that its settings name: the same again goes on where it was.
"""

import math
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import DepthscopeError
from depthscope.experiments.drawn_designs import DrawnDesign
from depthscope.experiments.progress import tell
from depthscope.training import checkpoint
from depthscope.training.arms import rate_words
from depthscope.training.executors import opened
from depthscope.training.job import Job, key
from depthscope.training.loop import train
from depthscope.training.plan import Listed
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks import task as load_task
from depthscope.training.work import work

RATES = (3e-3, 1e-3, 1e-2, 3e-4)  # in the order in which they are tried while none trains
LEARNT = 0.998  # of the loss of the best constant answer: without a look at the input nobody is below 1
WINDOW = 8  # batches over which the training loss is averaged to say when it fell below
OPTIONS: dict[str, dict[str, Any]] = {
    "digits": {"train": 800},
    "pydoc": {"model": "decoder", "segment": 24, "epoch_tokens": 28 * 16 * 24, "test": 1024, "bias": "frequencies"},
    "sorting": {"activation": "relu"},  # replaced by the design's own
}
BATCH = {"digits": 32, "pydoc": 16, "sorting": 32}


@dataclass(frozen=True)
class Outcome:
    """What came of a design at a rate. best: the least validation loss over that of the best constant answer.

    steps: after how many the training loss, a mean over WINDOW batches, was below LEARNT of it; -1: never.
    """

    number: int
    rate: float
    best: float
    score: float
    steps: int
    status: str
    seconds: float

    @property
    def trains(self) -> bool:
        return self.best < LEARNT


def recipe_of(design: DrawnDesign, rate: float, epochs: int = 2) -> Recipe:
    """AdamW at a constant rate without warm-up: 50, 56 and 64 steps on digits, pydoc and sorting."""
    shared = {"epochs": epochs, "weight_decay": 0.01, "milestones": (), "seed": design.number}
    return Recipe(batch=BATCH[design.task], lr=rate, **shared)  # type: ignore[arg-type]


def options_of(design: DrawnDesign) -> dict[str, Any]:
    return OPTIONS[design.task] | ({"activation": design.choices["activation"]} if design.task == "sorting" else {})


def job_of(design: DrawnDesign, rate: float, folder: Path, epochs: int = 2) -> Job:
    """The job of one run; its folder is told by all that decides its result."""
    options, build, recipe = options_of(design), design.build, recipe_of(design, rate, epochs)
    fingerprint = _task(design.task, tuple(options.items())).fingerprint
    name = f"{design.task}-{design.number}-{rate_words(rate)}-{key(build.to_dict(), recipe.to_dict(), fingerprint)}"
    label = f"{design.task}, design {design.number} at {rate_words(rate)}"
    return Job(label, folder / name, design.task, options, build, recipe, fingerprint=fingerprint)


def outcomes(
    pairs: Sequence[tuple[DrawnDesign, float]], folder: Path, *, processes: int | None = None, epochs: int = 2
) -> list[Outcome]:
    """Train every design at its rate; a folder that has some of the runs is gone on with."""
    jobs = {job_of(design, rate, folder.resolve(), epochs): (design, rate) for design, rate in pairs}
    source = Listed([*jobs])
    folder.mkdir(parents=True, exist_ok=True)
    with opened(None, processes, folder.resolve()) as crew:
        work(source, crew.executor, folder, at_once=crew.asked, watch=lambda m: tell(m.ended, m.total))
    return [_outcome(design, rate, source.outcomes[job]) for job, (design, rate) in jobs.items()]


def next_rate(known: dict[float, bool]) -> float | None:
    """The rate to try next, when it is known at which of RATES a design trains; None when the largest is known.

    That is one that trains while the next above it does not, or is none. Rates below it are not tried. A rate that
    fails says nothing of those above it before one below it has trained: it may be too slow.
    """
    ladder = sorted(RATES)
    top = max((k for k, rate in enumerate(ladder) if known.get(rate)), default=None)
    if top is None:
        return next((rate for rate in RATES if rate not in known), None)
    above = ladder[top + 1 : top + 2]
    return above[0] if above and above[0] not in known else None


def climbed(design: DrawnDesign, folder: Path, epochs: int = 2, *, known: Iterable[Outcome] = ()) -> list[Outcome]:
    """Runs of one design, one after another in this process, until the largest rate that trains is known."""
    found = [*known]
    while (rate := next_rate({one.rate: one.trains for one in found})) is not None:
        found.append(outcome_here(design, rate, folder, epochs))
    return found


def outcome_here(design: DrawnDesign, rate: float, folder: Path, epochs: int = 2) -> Outcome:
    """The outcome of one run, in this process, which saves the start of one; it is gone on with, or read."""
    job = job_of(design, rate, folder.resolve(), epochs)
    job.write()
    run = job.ended()
    if run is None:
        run = train(job.build, _task(job.task, tuple(job.options.items())), job.recipe, folder=job.folder)
    if not run.ended:  # ^C only asks a training to stop; what is around it is to stop too
        raise KeyboardInterrupt
    for kept in checkpoint.folders(job.folder):  # the weights of all runs would fill a disk
        shutil.rmtree(kept, ignore_errors=True)
    return _outcome(design, rate, run)


def ended_outcomes(pairs: Iterable[tuple[DrawnDesign, float]], folder: Path, *, epochs: int = 2) -> list[Outcome]:
    """Of those runs that a folder has already."""
    runs = ((design, rate, job_of(design, rate, folder.resolve(), epochs).ended()) for design, rate in pairs)
    return [_outcome(design, rate, run) for design, rate, run in runs if run is not None]


def _outcome(design: DrawnDesign, rate: float, run: Run | str) -> Outcome:
    if isinstance(run, str):
        raise DepthscopeError(f"design {design.number} at {rate_words(rate)}: every run must come to an end; {run}.")
    floor = constant_loss(design.task, tuple(options_of(design).items()))
    looks = [one["loss"] for one in run.evaluations if one["split"] == "valid"]
    best = min((loss for loss in looks if math.isfinite(loss)), default=math.inf) / floor
    score = run.final["valid"].get("accuracy", -math.inf if math.isinf(best) else -best * floor)
    steps = _steps_to(run.history["loss"], LEARNT * floor)
    return Outcome(design.number, rate, best, score, steps, run.status, run.seconds)


def _steps_to(losses: list[float], goal: float) -> int:
    if len(losses) < WINDOW:
        return -1
    means = torch.tensor(losses, dtype=torch.float64).unfold(0, WINDOW, 1).mean(-1).tolist()
    return next((step + WINDOW for step, mean in enumerate(means) if mean < goal), -1)


@cache
def _task(name: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return load_task(name, **dict(options))


@cache
def constant_loss(name: str, options: tuple[tuple[str, Any], ...]) -> float:
    """The least loss on the validation split of an answer that is always the same; where places are known, for each."""
    task = _task(name, options)
    labels = task.looked_at("valid") if name == "pydoc" else task.valid.labels
    rows = labels.reshape(len(labels), -1)  # (examples, places)
    found = [column.bincount().double() / len(rows) for column in rows.T]
    return sum(float(-(p[p > 0] * p[p > 0].log()).sum()) for p in found) / len(found)
