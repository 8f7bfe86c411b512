"""Advice: what was weighed, what was chosen, and the curves that each change would give."""

from typing import Any

from depthscope.forecasts.advice import Advice
from depthscope.reports.sheet import Grid, Line, Sheet

SIZE = (10, 3.6)


def sheets(advice: Advice) -> list[Sheet]:
    cells = []
    for option in advice.options:
        growth = "?" if option.growth is None else f"{option.growth:.2g}"
        mark = "chosen" if option is advice.choice else "enough" if advice.keeps(option) else ""
        cells.append([option.change, f"{option.t_div:.2g}", growth, mark])
    grid = Grid(["change", "t_div at the end", "gradients", ""], cells, left=1, fold=None)
    return [Sheet("advice", [Line(advice.text, "bold"), grid])]


def draw(advice: Advice, figure: Any) -> None:
    """t_div over depth, one line for each option, the choice in bold."""
    ax = figure.subplots()
    for option in advice.options:
        chosen = option is advice.choice
        ax.semilogy(option.forecast.t_div.clamp(min=1e-16), lw=2.4 if chosen else 1.0, label=option.change)
    ax.axhline(advice.floor, color="0.6", lw=0.8, ls=":", label="floor")
    ax.set(title="token diversity", xlabel="block", ylabel="t_div")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
