"""compare: arms x seeds under one budget, each a process of its own; the same weights and data order per seed."""

import math
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import UnknownNameError, UsageError
from depthscope.files import check_writable
from depthscope.registry import unknown
from depthscope.training.advised import settled
from depthscope.training.arms import arms as read_arms
from depthscope.training.arms import with_caveat, with_literal
from depthscope.training.build import Build
from depthscope.training.choices import Sorted, sort_choices
from depthscope.training.comparison import Comparison
from depthscope.training.executors import opened
from depthscope.training.plan import Plan
from depthscope.training.recipe import SEEDS, Recipe
from depthscope.training.tasks import task as load_task
from depthscope.training.tasks.own import NOT_CHOSEN
from depthscope.training.work import OnMoment

ARMS = ("post_norm", "pre_norm", "de_escalate")
OWN, OWN_ARMS = "own", ("plain", "de_escalate")
MOST_SEEDS = 10_000
LOGS = 8  # measurements by the monitor over a run, besides the last
OF_THE_ARM = ("wiring", "remedy", "remedy_settings", "at", "causal")  # choices of a build that arms make
RECORD = "comparison.json"


def compare(
    task: str = "digits",
    arms: str | Sequence[str] | None = None,
    *,
    seeds: int | Sequence[int] = 3,
    search: int | None = None,
    caveat: bool = True,
    processes: int | None = None,
    executor: Any = None,
    folder: str | Path | None = None,
    storage: str | None = None,
    watch: OnMoment | None = None,
    **choices: Any,
) -> Comparison:
    """Train every arm with every seed and compare them: compare("digits", "post_norm,de_escalate", depth=24, epochs=6).

    task: a name, or package.module:setup for a model, batches and a loss of your own (tasks/own.py).
    arms: see arm(). seeds: how many, or which. choices: of the model (depth, d, h, q, weights, pooling, output), of the
    training (epochs, lr, batch, and all else of Recipe) and of the task (data, train, ...).
    What is not chosen is what suits the task (Task.defaults).
    search: trials of learning rates for each arm, judged on the validation split with the first seed; equal for all but
    arms that came with a rate of their own. With 0 all arms share lr, and post_norm gets a second lane at a third of
    it. Language models get a lane with de-escalation in the paper's literal form, which sees the future. caveat=False
    leaves both lanes out.
    processes: how many jobs run side by side (all cores; one where there is a GPU).
    executor: who does the jobs: "local" (processes of this machine), "dask:ADDRESS", "slurm:OPTIONS", or any
    concurrent.futures.Executor, as client.get_executor() of Dask or MPIPoolExecutor() of mpi4py, or one of submitit. A
    job whose worker is lost is submitted again. All workers must share the folder.
    folder: the same folder again goes on where it was; machines that share it share the work. Without one, a temporary
    folder. storage: the URL of a database for the trials of the search, instead of a file in the folder.
    """
    if isinstance(task, str) and ":" in task:
        task, choices = OWN, {**choices, "setup": task}
    chosen = _sorted_choices(task, choices)
    lanes, numbers = read_arms(arms or (OWN_ARMS if task == OWN else ARMS)), _numbers(seeds)
    if search is not None and (type(search) is not int or search < 0):
        raise UsageError(f"compare: search must be a number of trials per arm, 0 or more; got {search!r}.")
    if processes is not None and (type(processes) is not int or processes < 1):
        raise UsageError(f"compare: processes must be a whole number, 1 or more; got {processes!r}.")
    if folder is not None:
        check_writable(Path(folder) / RECORD)
    data = load_task(task, **chosen.options)
    usual = sort_choices(task, data.defaults)
    base, recipe = Build(**usual.build | chosen.build), Recipe(**usual.recipe | chosen.recipe)
    search = data.defaults.get("search", 0) if search is None else search
    lanes = settled(lanes, base, data, recipe.lr)
    if caveat and data.score == "loss":
        lanes = with_literal(lanes)
    if caveat and not search:
        lanes = with_caveat(lanes, recipe.lr)
    data.batches(recipe, torch.device("cpu"))
    for one in lanes:  # a mistake in an arm, as in the augmentation, is told now and not by a process in an hour
        one.build(base).model(data, numbers[0])
    if "log_every" not in choices:
        recipe = replace(recipe, log_every=math.ceil(recipe.steps(len(data)) / LOGS))
    with tempfile.TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        home = Path(place).resolve()  # the workers' own folder may be another
        with opened(executor, processes, home) as crew:
            plan = Plan(home, data, chosen.options, base, recipe, numbers, crew, watch)
            rates, trials, words = plan.search(lanes, search, storage) if search else ({}, {}, "")
            result = plan.compare(lanes, rates, trials, words)
        if folder is not None:
            result.save(Path(place) / RECORD)
    return result


def _sorted_choices(task: str, choices: dict[str, Any]) -> Sorted:
    """Each choice to whom it belongs: the model, the training, the task."""
    if not isinstance(task, str):
        raise UsageError(
            f"compare: the task must be named, for every process loads it itself; got {type(task).__name__}."
        )
    taken = (*OF_THE_ARM, "seed", *(NOT_CHOSEN if task == OWN else ()))
    found = sort_choices(task, choices, taken=taken)
    for name in found.rest:
        raise UnknownNameError("compare: " + unknown(f"choice for {task}", name, found.known))
    return found


def _numbers(seeds: int | Sequence[int]) -> list[int]:
    count = seeds if type(seeds) is int else None
    if count is not None and count > MOST_SEEDS:
        raise UsageError(f"compare: seeds must be at most {MOST_SEEDS:,}; got {count}. Give fewer, or a list of them.")
    numbers = list(range(count)) if count is not None else list(seeds) if isinstance(seeds, Sequence) else []
    if not numbers or any(type(n) is not int or not 0 <= n < SEEDS for n in numbers) or len({*numbers}) < len(numbers):
        raise UsageError(
            "compare: seeds must be how many (1 or more), or different whole numbers from 0 on, below 2^63; "
            f"got {seeds!r}."
        )
    return numbers
