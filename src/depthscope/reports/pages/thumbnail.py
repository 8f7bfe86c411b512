"""A chart of a story as a small PNG, by matplotlib. The background is clear, so that it suits light and dark."""

import io
from typing import Any

from depthscope.reports.chart import COLOURS
from depthscope.reports.story import Chart, Heat, Trace

SIZE = (6.4, 2.5)
GREY = "#7d8590"  # readable on white and on black
LINES = {"solid": "-", "dash": "--", "dot": ":", "points": ""}
NAMED = 6  # curves in a legend


def thumbnail(chart: Chart | Heat) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    ax = figure.subplots()
    if isinstance(chart, Heat):
        _heat(ax, chart)
    else:
        _curves(ax, chart)
    ax.set_title(chart.title, fontsize=9, color=GREY, parse_math=False)
    ax.set_xlabel(chart.x, fontsize=8, color=GREY, parse_math=False)
    ax.tick_params(colors=GREY, labelsize=8)
    for side in ax.spines.values():
        side.set_color(GREY)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100, transparent=True)
    return file.getvalue()


def _curves(ax: Any, chart: Chart) -> None:
    bottoms: dict[tuple[Any, bool], float] = {}  # how high bars stand already, above and below 0
    for trace in (one for one in chart.traces if not one.hidden):
        colour, x = COLOURS[trace.colour % len(COLOURS)], [*(trace.x or range(len(trace.y)))]
        if chart.bars:
            _stack(ax, trace, x, colour, bottoms)
            continue
        mark = "o" if trace.line == "points" else ""
        ax.plot(x, trace.y, color=colour, ls=LINES[trace.line], marker=mark, ms=3, label=trace.name)
        if trace.band is not None:
            ax.fill_between(x, *trace.band, color=colour, alpha=0.2, lw=0)
    if chart.log and any(y > 0 for trace in chart.traces for y in trace.y):
        ax.set_yscale("log")
    for value in chart.marks.values():
        ax.axhline(value, color=GREY, lw=0.8, ls=":")
    if chart.low == chart.low and not chart.log:
        ax.set_ylim(chart.low - 0.03, chart.high + 0.03)
    ax.set_ylabel(chart.y, fontsize=8, color=GREY, parse_math=False)
    handles, names = ax.get_legend_handles_labels()
    found = ax.legend(handles[:NAMED], [_plain(name) for name in names[:NAMED]], fontsize=7, frameon=False)
    for words in found.get_texts():
        words.set_color(GREY)


def _stack(ax: Any, trace: Trace, x: list[Any], colour: str, bottoms: dict[tuple[Any, bool], float]) -> None:
    values = [y if y == y else 0.0 for y in trace.y]
    start = [bottoms.get((at, y < 0), 0.0) for at, y in zip(x, values, strict=True)]
    ax.bar(x, values, bottom=start, color=colour, label=trace.name)
    for at, y, below in zip(x, values, start, strict=True):
        bottoms[at, y < 0] = below + y


def _heat(ax: Any, chart: Heat) -> None:
    limits = {"vmin": chart.low, "vmax": chart.high} if chart.low == chart.low else {}
    colours = "RdBu_r" if chart.middle == chart.middle else "viridis"
    image = ax.imshow(chart.values, aspect="auto", cmap=colours, origin="lower", interpolation="none", **limits)
    bar = ax.figure.colorbar(image, ax=ax)
    bar.ax.tick_params(colors=GREY, labelsize=7)
    ax.set_ylabel(chart.y, fontsize=8, color=GREY, parse_math=False)


def _plain(name: str) -> str:
    """A dollar sign would begin a formula, an underscore in front hides a name from a legend."""
    return name.replace("$", r"\$").lstrip("_")[:60]
