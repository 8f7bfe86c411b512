"""The picture of a comparison: losses and scores with bands over seeds, token similarity over training."""

import math
from itertools import cycle
from typing import Any

from depthscope.reports.chart import COLOURS
from depthscope.training.arms import rate_words
from depthscope.training.comparison import Comparison
from depthscope.training.lane import Lane

IN_A_ROW = 4  # heat maps
SMOOTH = 9  # steps; a line of single batches hides the trend


def size(comparison: Comparison) -> tuple[float, float]:
    return 12, 4.2 + 2.9 * _rows(comparison)


def _rows(comparison: Comparison) -> int:
    return math.ceil(len(comparison.lanes) / IN_A_ROW)


def draw(comparison: Comparison, figure: Any) -> None:
    """Above the curves of all arms, below one heat map of t_sim for each."""
    lanes, rows = comparison.lanes, _rows(comparison)
    parts: Any = figure.subfigures(2, 1, height_ratios=(4.2, 2.9 * rows))
    above, below = parts
    loss, score = above.subplots(1, 2)
    for lane, colour in zip(lanes, cycle(COLOURS), strict=False):
        _lines(loss, score, lane, colour, comparison.score.name)
    guess, chance = math.log(comparison.facts["answers"]), comparison.facts["chance"]
    loss.axhline(guess, color="0.5", lw=0.8, ls=":")
    score.axhline(chance, color="0.5", lw=0.8, ls=":", label="without looking")
    loss.set(title="training loss", xlabel="step", ylim=(0, 1.35 * guess))
    over = 1.02 if comparison.score.name == "accuracy" else 1.35 * chance
    end = f"{comparison.score.name} on the validation split; test at the end (diamonds)"
    score.set(title=end, xlabel="step", ylim=(0, over))
    above.legend(*score.get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    for ax in (loss, score):
        ax.grid(alpha=0.25)
    columns = min(len(lanes), IN_A_ROW)
    grid = below.subplots(rows, columns, squeeze=False, sharey=True)
    image = None
    for i, lane in enumerate(lanes):
        ax = grid[i // columns][i % columns]
        image = _heat(ax, lane) or image
        if i % columns == 0:
            ax.set_ylabel("block")
    for ax in grid.flat[len(lanes) :]:
        ax.set_visible(False)
    if image is not None:
        below.colorbar(image, ax=grid, label="t_sim, how alike tokens are", shrink=0.9)
    seeds = len(comparison.seeds)
    figure.suptitle(
        f"{comparison.task}, {comparison.base.depth} blocks, {epochs_in_words(comparison.recipe.epochs)}, "
        + (f"mean of {seeds} seeds (bands: lowest to highest)" if seeds > 1 else "1 seed"),
        fontsize=11,
    )


def epochs_in_words(epochs: int) -> str:
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


def _lines(loss: Any, score: Any, lane: Lane, colour: str, what: str) -> None:
    for ax, name, label in ((loss, "batch_loss", None), (score, what, title(lane))):
        steps, *lines = lane.curve(name)
        mean, lowest, highest = map(smooth, lines) if name == "batch_loss" else lines
        ax.plot(steps, mean, color=colour, lw=1.6, label=label)
        ax.fill_between(steps, lowest, highest, color=colour, alpha=0.15, lw=0)
    if lane.done and not lane.leaks:
        score.plot(lane.curve(what)[0][-1], lane.mean("test", what), "D", color=colour, ms=5, mec="white")


def _heat(ax: Any, lane: Lane) -> Any:
    """Blocks upwards, training to the right; returns the image for the scale, None where nothing was seen."""
    ax.set_title(title(lane), fontsize=9)
    ax.set_xlabel("step")
    steps, looks = lane.similarity()
    if not steps:
        ax.text(0.5, 0.5, "no run", ha="center", transform=ax.transAxes)
        return None
    return similarity_map(ax, steps, looks)


def similarity_map(ax: Any, steps: list[int], looks: list[list[float]]) -> Any:
    """A heat map of t_sim: looks at steps, (looks, blocks)."""
    blocks = list(zip(*looks, strict=True))  # one row a block
    return ax.pcolormesh(steps, range(len(blocks)), blocks, cmap="magma", vmin=0, vmax=1, shading="nearest")


def title(lane: Lane) -> str:
    """The arm with its rate, and what was lost of it."""
    lost = "".join(
        f", {len(some)} {word}" for some, word in ((lane.diverged, "diverged"), (lane.failed, "failed")) if some
    )
    leaks = ", LEAKS" if lane.leaks else ""
    return f"{lane.arm.name.partition('@')[0]}, lr {rate_words(lane.lr)}{lost}{leaks}"


def smooth(values: list[float]) -> list[float]:
    """A running mean over SMOOTH values, fewer at the ends."""
    reach = SMOOTH // 2
    windows = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
