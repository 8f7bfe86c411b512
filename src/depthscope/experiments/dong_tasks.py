"""The three tasks of Dong et al. 2021, section 4, trained once for all the experiments that ask for them."""

import copy
import math
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import CheckpointError, DepthscopeError
from depthscope.experiments.claim import Claim, Row, stated
from depthscope.experiments.progress import tell
from depthscope.experiments.races import one_thread
from depthscope.experiments.trainings import Trainings
from depthscope.metrics import relative_residual
from depthscope.models.tagger import Tagger
from depthscope.training import checkpoint
from depthscope.training.build import Build
from depthscope.training.choices import sort_choices
from depthscope.training.executors import opened
from depthscope.training.job import Job, key
from depthscope.training.loop import train
from depthscope.training.plan import Listed
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.tasks import task as load_task
from depthscope.training.work import work

SIZES: dict[str, dict[str, Any]] = {  # of the paper; batch, epochs and rate are ours, as the tasks have them by default
    "sorting": {"d": 48, "h": 2, "epochs": 24, "batch": 30, "lr": 1e-3, "train": 1000, "test": 200},
    "convex_hull": {"d": 84, "h": 3, "epochs": 3, "batch": 100, "lr": 1e-3, "train": 10_000, "test": 300},
    "memorization": {"d": 250, "h": 2, "epochs": 16, "batch": 16, "lr": 2e-3, "sequences": 500, "length": 128},
}
SMALL: dict[str, dict[str, Any]] = {
    "sorting": SIZES["sorting"] | {"epochs": 12, "lr": 2e-3},
    "convex_hull": SIZES["convex_hull"] | {"epochs": 2, "batch": 50, "train": 5000},
    "memorization": SIZES["memorization"] | {"d": 64, "epochs": 30, "batch": 4, "sequences": 24, "length": 48},
}
_DONE: dict[str, tuple[Run, dict[str, Tensor]]] = {}  # by all that decides a result: what was trained in this process


@dataclass(frozen=True, eq=False)
class Trained:
    """A model at the end of its training, the same before, and the record of what came between."""

    task: Any
    run: Run
    model: Tagger
    fresh: Tagger


def trained(
    wanted: dict[str, dict[str, Any]], seeds: Sequence[int], *, side_by_side: bool, folder: str = ""
) -> dict[str, list[Trained]]:
    """For each task by name, with its settings, a model for each seed; what was trained in this process is not again.

    side_by_side: every run is a process of its own. folder: where runs are kept and go on, "" for a temporary one.
    """
    with tempfile.TemporaryDirectory() if not folder else nullcontext(folder) as place:
        jobs = {name: _jobs(name, settings, seeds, Path(place).resolve()) for name, settings in wanted.items()}
        missing = [job for own in jobs.values() for job in own if _name(job) not in _DONE]
        if missing and side_by_side:
            _in_processes(missing, Path(place).resolve())
        elif missing:
            _here(missing)
        for job in missing:
            _DONE[_name(job)] = _read(job)
    return {name: [_built(job) for job in own] for name, own in jobs.items()}


def _jobs(name: str, settings: dict[str, Any], seeds: Iterable[int], place: Path) -> list[Job]:
    own = sort_choices(name, settings)
    usual = sort_choices(name, load_task(name, **own.options).defaults)
    build, recipe = Build(**usual.build | own.build), Recipe(**usual.recipe | own.recipe)
    jobs = [
        Job(f"{name}, seed {seed}", place, name, own.options, build, replace(recipe, seed=seed), True) for seed in seeds
    ]
    return [replace(job, folder=place / f"{name}-{job.recipe.seed}-{_name(job)}") for job in jobs]


def _name(job: Job) -> str:
    return key(job.build.to_dict(), job.recipe.to_dict(), job.task, job.options)


def _in_processes(jobs: list[Job], place: Path) -> None:
    source = Listed(jobs)
    with opened(None, None, place) as crew:
        work(source, crew.executor, place, watch=lambda moment: tell(moment.ended, moment.total))
    for job, outcome in source.outcomes.items():
        if isinstance(outcome, str):
            raise DepthscopeError(f"{job.label}: every run must come to an end; {outcome}.")


def _here(jobs: list[Job]) -> None:
    with one_thread():
        for done, job in enumerate(jobs):
            tell(done, len(jobs))
            task = load_task(job.task, **job.options)
            run = train(job.build, task, job.recipe, folder=job.folder, every_steps=job.recipe.steps(len(task)) + 1)
            if not run.ended:  # ^C only asks a training to stop; the experiment is to stop too
                raise KeyboardInterrupt


def _read(job: Job) -> tuple[Run, dict[str, Tensor]]:
    saved, run = checkpoint.latest(job.folder), job.ended()
    if saved is None or run is None:
        raise CheckpointError(f"{job.folder}: must hold a run and its last checkpoint; one of them is gone. Remove it.")
    if run.status != "done":
        raise DepthscopeError(f"{job.label}: every run must come to its end; {run.reason}. Take a smaller --set lr.")
    return run, saved.model


def _built(job: Job) -> Trained:
    run, weights = _DONE[_name(job)]
    task = load_task(job.task, **job.options)
    model, fresh = (job.build.model(task, job.recipe.seed)[0].eval() for _ in range(2))
    model.load_state_dict(weights)
    return Trained(task, run, model, fresh)  # type: ignore[arg-type]


def whole_model(name: str, cfg: Trainings) -> dict[str, Tensor]:
    """accuracy: on the test split, (seeds,); chance; step, curve: validation accuracy on the way, (3, steps); residual:
    (3, states)."""
    settings = {size: getattr(cfg, size) for size in SIZES[name]}
    found = trained({name: settings}, cfg.seeds, side_by_side=cfg.side_by_side, folder=cfg.folder)[name]
    step, curve = learning_curve(found)
    return {
        "accuracy": torch.tensor([each.run.final["test"]["accuracy"] for each in found]),
        "chance": torch.tensor(found[0].task.chance),
        "step": step,
        "curve": curve,
        "residual": residuals(found),
    }


def learning_curve(found: Sequence[Trained]) -> tuple[Tensor, Tensor]:
    """(steps, accuracies (3, steps): mean, lowest, highest over seeds) on the validation split."""
    looks = [[one for one in each.run.evaluations if one["split"] == "valid"] for each in found]
    steps = torch.tensor([one["step"] for one in looks[0]])
    rows = torch.tensor([[one["accuracy"] for one in own] for own in looks])
    return steps, torch.stack([rows.mean(0), rows.amin(0), rows.amax(0)])


@torch.no_grad()
def residuals(found: Sequence[Trained]) -> Tensor:
    """relative_residual of the states 0 ... depth, mean over seeds and sequences, (3, depth + 1).

    At the start, after training, and after training with the residual connections taken out: Y = LN(LN(SA(X))).
    """
    rows = []
    for each in found:
        fresh, model = (copy.deepcopy(one).double() for one in (each.fresh, each.model))  # tokens grow very alike
        inputs = each.task.probe(torch.device("cpu"))
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        pure = [model.tokens(inputs)]
        for block in model.transformer:
            pure.append(block.wiring.norm_2(block.wiring.norm_1(block.attention(pure[-1]))))
        states = (_states(fresh, inputs), _states(model, inputs), pure)
        rows.append(torch.stack([torch.stack([relative_residual(X).mean() for X in own]) for own in states]))
    return torch.stack(rows).mean(0)


def _states(model: Tagger, inputs: Tensor) -> list[Tensor]:
    states = [model.tokens(inputs)]
    for block in model.transformer:
        states.append(block(states[-1]))
    return states


def claims_of(numbers: dict[str, Tensor], cfg: Trainings, *rows: Row) -> list[Claim]:
    """The rows of one task, and what holds for all: tokens stay apart with residual connections, and not without."""
    _, whole, pure = numbers["residual"][:, -1]
    return stated(
        cfg.trials,
        *rows,
        ("relative residual after the last block, whole model", whole, 0.3, math.inf, pure),
        ("the same with the residual connections taken out", pure, 0.0, 1e-3, whole),
    )


def draw_learning(figure: Any, numbers: dict[str, Tensor], title: str, lines: dict[str, float]) -> None:
    """Accuracy while it learns, with lines to compare; relative residual by block."""
    learned, left = figure.subplots(1, 2)
    mean, low, high = numbers["curve"]
    learned.plot(numbers["step"], mean, color="C0", label="whole model, on the way")
    learned.fill_between(numbers["step"], low, high, color="C0", alpha=0.15, lw=0)
    last = float(numbers["step"].max())
    learned.plot(
        [last] * len(numbers["accuracy"]), numbers["accuracy"], "D", ms=5, color="C3", label="at the end, one a seed"
    )
    for (label, value), style in zip(lines.items(), ("--", ":", "-."), strict=False):
        if not math.isnan(value):
            learned.axhline(value, color="0.4", ls=style, lw=1, label=f"{label} {value:.3g}")
    learned.set(title=title, xlabel="step", ylabel="accuracy", ylim=(0, 1.03))
    labels = ("at the start", "trained", "trained, residual connections taken out")
    for row, label, colour in zip(numbers["residual"], labels, ("C7", "C0", "C3"), strict=True):
        left.semilogy(row.clamp_min(1e-17), "o-", ms=3, color=colour, label=label)
    left.axhline(torch.finfo(torch.float64).eps, color="0.4", ls=":", lw=1, label="rounding of float64")
    left.set(xlabel="block", ylabel="relative residual", title="how far tokens are from all alike")
