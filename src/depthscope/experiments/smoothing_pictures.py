"""Pictures of arms that smooth and arms that sharpen: lines over settings with spread, and a table of who is ahead."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from depthscope.experiments.races import line_style
from depthscope.experiments.smoothing_arms import ARMS, PAIRS, Ahead, ImageSizes, compared, data_of


def draw_settings(numbers: dict[str, Tensor], cfg: ImageSizes, names: Sequence[str], what: str, figure: Any) -> None:
    """A row for each data set: accuracy and HFC/LFC over the settings of `what`, and who is ahead."""
    data = data_of(cfg)
    figure.set_size_inches(14, 4 * len(data))
    axes = figure.subplots(len(data), 3, squeeze=False, width_ratios=(1, 1, 1.6))
    for place, ((name, count), (accuracy, ratio, table)) in enumerate(zip(data.items(), axes, strict=True)):
        scores = numbers["test_accuracy"][place]
        draw_lines(accuracy, scores, names, f"{name}: test accuracy")
        draw_lines(ratio, numbers["hfc_lfc"][place], names, "HFC/LFC after the last block, trained")
        for ax in (accuracy, ratio):
            ax.set_xlabel(what)
        tested = compared(scores, resolution=1 / count)
        draw_table(table, tested, PAIRS, names, f"{name}: points of test accuracy ahead, {over(cfg.trials)}")


def over(trials: int) -> str:
    """How many seeds a table is over, and what its bold letters mean."""
    return f"{trials} seed{'' if trials == 1 else 's'}; bold: more than noise"


def draw_lines(ax: Any, values: Tensor, names: Sequence[str], title: str) -> None:
    """values (settings, arms, seeds): a line of means for each arm, a band from the lowest to the highest seed."""
    places = range(len(names))
    for lane, arm in enumerate(ARMS):
        rows = values[:, lane]
        style = line_style(lane)
        ax.plot(places, rows.mean(1), marker="o", ms=4, label=arm, **style)
        ax.fill_between(places, rows.amin(1), rows.amax(1), color=style["color"], alpha=0.12, lw=0)
    ax.set_xticks(places, names)
    ax.set_title(title)


def draw_table(
    ax: Any, rows: Sequence[Sequence[Ahead]], pairs: Sequence[tuple[str, str]], names: Sequence[str], title: str,
    *, scale: float = 100.0, digits: int = 1,
) -> None:  # fmt: skip
    """Who is ahead by how much, mean ± deviation over seeds; bold and dark where that is more than noise."""
    cells = [[_cell(scale * one.mean, scale * one.spread, digits) for one in row] for row in rows]
    heads = [f"{one}\nminus\n{other}" for one, other in pairs]
    ax.axis("off")
    table = ax.table(cellText=cells, rowLabels=list(names), colLabels=heads, loc="center", cellLoc="center")
    table.auto_set_font_size(False)
    for (row, column), cell in table.get_celld().items():
        cell.set(edgecolor="0.85", height=(1 if row else 1.7) / (len(rows) + 3.7))  # heads have three lines
        noise = row and column >= 0 and not rows[row - 1][column].clear
        cell.set_text_props(fontsize=6.5, color="0.5" if noise else "0.0")
        if row and column >= 0 and not noise:
            cell.set_text_props(fontweight="bold")
    ax.set_title(title, fontsize=9)


def _cell(mean: float, spread: float, digits: int) -> str:
    """+0.4 ± 0.3; no spread where there is none to tell."""
    return f"{mean:+.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{digits}f}")
