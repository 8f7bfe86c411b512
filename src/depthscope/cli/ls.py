"""depthscope ls: what there is, by name. What depthscope brings is read from shelves.json, so that nobody waits."""

import json
from enum import StrEnum
from typing import Annotated

import typer

from depthscope.cli.completion import LISTED
from depthscope.plugins import entries


class Shelf(StrEnum):
    """The shelves that can be listed."""

    metrics = "metrics"
    remedies = "remedies"
    models = "models"
    experiments = "experiments"
    tasks = "tasks"


KINDS = {  # what stands on a shelf
    Shelf.metrics: ("metric",),
    Shelf.remedies: ("remedy", "wiring"),
    Shelf.models: ("preset", "wiring"),
    Shelf.experiments: ("experiment",),
    Shelf.tasks: ("task",),
}


def command(shelf: Annotated[Shelf, typer.Argument(help="What to list.")]) -> None:
    """List the metrics, remedies, models (presets and the parts of reference models), experiments or tasks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    names, rows = listed(shelf)
    for name in names:
        grid.add_column(name, no_wrap=name == names[0])
    for row in rows:
        grid.add_row(*map(Text, row))
    Console().print(grid)


def listed(shelf: Shelf) -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the rows. Where other packages have put something on the shelf, it is looked at."""
    if any(entries(kind) for kind in KINDS[shelf]):
        from depthscope.cli.shelves import rows_of

        return rows_of(shelf.value)
    names, rows = json.loads(LISTED.read_text(encoding="utf-8"))[shelf.value]
    return names, rows
