"""What experiments that train have in common: arms x seeds on one task, their ends and curves as tensors, the lines."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import DepthscopeError, UsageError
from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.progress import tell
from depthscope.reports.chart import COLOURS
from depthscope.reports.training_curves import smooth
from depthscope.training.arms import arms as read_arms
from depthscope.training.build import Build
from depthscope.training.compare import compare
from depthscope.training.lane import Lane, thinned
from depthscope.training.loop import train
from depthscope.training.recipe import Recipe
from depthscope.training.run import Run
from depthscope.training.significance import FEWEST, LEVEL, paired
from depthscope.training.tasks import task as load_task

CHANCE = math.log(10)  # the loss of a guess at images; all tasks here have ten classes
TEST_IMAGES = 360  # of digits


@dataclass(frozen=True)
class Race:
    """All arms share model (depth, d, h, q), recipe (epochs, lr, batch, ...), task with its options, and the seeds.

    side_by_side: every run is a process of its own; a race of seconds is faster in this one. folder: where the
    processes keep their runs, and those that are there go on; "" is a temporary one.
    """

    arms: Sequence[str]
    seeds: Sequence[int]
    model: dict[str, Any]
    recipe: dict[str, Any]
    task: str = "digits"
    options: dict[str, Any] = field(default_factory=dict)
    side_by_side: bool = True
    folder: str = ""

    @property
    def runs(self) -> int:
        return len(self.arms) * len(self.seeds)


def run_race(race: Race, *, done: int = 0, total: int = 0) -> list[Lane]:
    """Train every arm with every seed. For the progress: `done` runs of `total` came in races before this one."""
    if race.folder and not race.side_by_side:
        raise UsageError(
            f"folder: runs are kept only when each is a process of its own; got {race.folder!r} and side_by_side = "
            "False. Leave the folder out, or --set side_by_side=true."
        )
    total = total or race.runs
    lanes = _in_processes(race, done, total) if race.side_by_side else _here(race, done, total)
    for lane in lanes:
        for seed, why in lane.failed.items():
            raise DepthscopeError(f"{race.task}: every run must come to an end; {lane.arm.name}, seed {seed}: {why}.")
    return lanes


def _in_processes(race: Race, done: int, total: int) -> list[Lane]:
    return compare(
        race.task,
        race.arms,
        seeds=race.seeds,
        search=0,  # all arms at their own rates, or the same
        caveat=False,
        folder=race.folder or None,
        watch=lambda moment: tell(done + moment.ended, total),
        **race.options,
        **race.model,
        **race.recipe,
    ).lanes


def _here(race: Race, done: int, total: int) -> list[Lane]:
    task, base, recipe = load_task(race.task, **race.options), Build(**race.model), Recipe(**race.recipe)
    lanes, steps = list[Lane](), recipe.steps(len(task))
    with one_thread():
        for arm in read_arms(race.arms):
            rate, runs = arm.lr or recipe.lr, dict[int, Run]()
            for seed in race.seeds:
                tell(done + len(lanes) * len(race.seeds) + len(runs), total)
                run = train(arm.build(base), task, replace(recipe, lr=rate, seed=seed))
                if not run.ended:  # ^C only asks a training to stop; the race is to stop too
                    raise KeyboardInterrupt
                runs[seed] = thinned(run, steps)
            lanes.append(Lane(arm, rate, runs, {}))
    return lanes


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a process of its own: small tensors gain nothing by more, and numbers do not depend on the machine's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def ends(lanes: Sequence[Lane], split: str, what: str) -> Tensor:
    """ "loss" or "accuracy" on a split at the end, (lanes, seeds); a diverged run counts as it was when it stopped."""
    return torch.tensor([[run.final[split][what] for run in lane.runs.values()] for lane in lanes])


def training_curves(lanes: Sequence[Lane]) -> tuple[Tensor, Tensor]:
    """(steps, losses of batches (lanes, 3, steps): mean, lowest, highest over seeds); nan where all have diverged."""
    curves = [lane.curve("batch_loss") for lane in lanes]
    steps = sorted({step for curve in curves for step in curve[0]})
    bands = []
    for seen, *lines in curves:
        there = [dict(zip(seen, line, strict=True)) for line in lines]
        bands.append([[line.get(step, math.nan) for step in steps] for line in there])
    return torch.tensor(steps), torch.tensor(bands)


def validation_curves(lanes: Sequence[Lane]) -> tuple[Tensor, Tensor]:
    """The same of the loss on the validation split, after every epoch."""
    looks: list[dict[int, list[float]]] = [{} for _ in lanes]
    for seen, lane in zip(looks, lanes, strict=True):
        for run in lane.runs.values():
            for one in run.evaluations:
                if one["split"] == "valid":
                    seen.setdefault(one["step"], []).append(one["loss"])
    steps = sorted({step for seen in looks for step in seen})
    nothing = [math.nan]
    bands = [[[of(seen.get(step, nothing)) for step in steps] for of in (fmean, min, max)] for seen in looks]
    return torch.tensor(steps), torch.tensor(bands)


def last_similarity(lanes: Sequence[Lane]) -> Tensor:
    """t_sim of the states 0 ... depth at the end of training, mean over seeds, (lanes, depth + 1)."""
    return torch.tensor([lane.similarity()[1][-1] for lane in lanes])


def more_than_noise(says: str, larger: Tensor, smaller: Tensor, resolution: float = 0.0) -> list[Claim]:
    """The claim that one arm is above another, (seeds,) each, by its paired p; by how much, where seeds are too few.

    resolution: the smallest step of a value. Without an effect p lies anywhere from 0 to 1.
    """
    test = paired(larger.tolist(), smaller.tolist(), resolution)
    if test.count < FEWEST:
        return reported(test.count, (f"{says} by", test.mean))
    return stated(test.count, (f"{says}, paired p", test.p if test.mean > 0 else 1.0, 0.0, LEVEL, 0.5))


def loss_by_frequency(race: Race) -> float:
    """Of a race on text: the loss of someone who knows only how frequent each token is."""
    return float(load_task(race.task, **race.options).facts["chance"])


def line_style(lane: int) -> dict[str, str]:
    """Colour and style of a lane's line: where colours come again, the line is dashed."""
    return {"color": COLOURS[lane % len(COLOURS)], "ls": "-" if lane < len(COLOURS) else "--"}


def draw_bands(
    ax: Any, steps: Tensor, bands: Tensor, labels: Sequence[str], batches: bool = False, chance: float = CHANCE
) -> None:
    """A line for each lane and a band from the lowest to the highest seed; of single batches, running means."""
    for lane, (lines, label) in enumerate(zip(bands, labels, strict=True)):
        there = ~lines[0].isnan()
        mean, lowest, highest = (smooth(line) if batches else line for line in lines[:, there].tolist())
        ax.plot(steps[there], mean, lw=1.5, label=label, **line_style(lane))
        ax.fill_between(steps[there], lowest, highest, color=line_style(lane)["color"], alpha=0.15, lw=0)
    ax.axhline(chance, color="0.5", ls=":", lw=1)


def draw_accuracies(ax: Any, accuracies: Tensor, labels: Sequence[str]) -> None:
    """A dot for each seed of each lane, (lanes, seeds), in the colours of its band."""
    draw_dots(ax, accuracies, labels, chance=0.1)
    ax.set(title="test accuracy, one dot a seed", ylim=(0, 1.02))


def draw_dots(ax: Any, values: Tensor, labels: Sequence[str], chance: float) -> None:
    """The same of any number."""
    for place, row in enumerate(values):
        ax.plot([place] * len(row), row, "o", ms=5, alpha=0.7, color=line_style(place)["color"])
    ax.axhline(chance, color="0.5", ls=":", lw=1)
    ax.set_xticks(range(len(labels)), labels, rotation=30, ha="right", fontsize=8)
