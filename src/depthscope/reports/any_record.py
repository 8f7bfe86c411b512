"""A record of a kind that nobody described: its fields in a table, its lists of numbers as lines."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from depthscope.records import Record
from depthscope.reports.sheet import Grid, Sheet

SIZE = (10, 3.6)


def sheets(record: Any) -> list[Sheet]:
    cells = [[f.name, _words(getattr(record, f.name))] for f in fields(record)]
    return [Sheet(type(record).__name__, [Grid(["field", "value"], cells, left=2, fold=None)])]


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)}"
    return repr(value) if isinstance(value, Record) else str(value)[:80]


def draw(record: Any, figure: Any) -> None:
    """One line for each field that is a list of numbers."""
    ax = figure.subplots()
    for f in fields(record):
        value = getattr(record, f.name)
        if isinstance(value, Tensor) and value.dim() == 1:
            ax.plot(value.real.numpy(), label=f.name)
    ax.set(title=type(record).__name__)
    if ax.lines:
        ax.legend(fontsize=8, frameon=False)
