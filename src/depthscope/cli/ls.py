"""depthscope ls: what there is, by name."""

from enum import StrEnum
from typing import Annotated, Any

import typer


class Shelf(StrEnum):
    """The shelves that can be listed."""

    metrics = "metrics"
    remedies = "remedies"
    models = "models"
    experiments = "experiments"
    tasks = "tasks"


def command(shelf: Annotated[Shelf, typer.Argument(help="What to list.")]) -> None:
    """List the metrics, remedies, models (presets and the parts of reference models), experiments or tasks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    shelves = {"metrics": metrics, "remedies": remedies, "models": models, "experiments": experiments, "tasks": tasks}
    names, rows = shelves[shelf.value]()
    for name in names:
        grid.add_column(name, no_wrap=name == names[0])
    for row in rows:
        grid.add_row(*map(Text, row))
    Console().print(grid)


def metrics() -> tuple[list[str], list[list[str]]]:
    from depthscope.registry import TABLES

    def row(f: Any) -> list[str]:
        facts = f.facts
        asked = "" if facts.default else "on request"
        return [facts.name, facts.kind, asked, facts.summary]

    ordered = sorted(
        TABLES["metric"].values(), key=lambda f: (["state", "step", "attention"].index(f.facts.kind), f.facts.name)
    )
    return ["metric", "of one", "", "what it says"], [row(f) for f in ordered]


def remedies() -> tuple[list[str], list[list[str]]]:
    from depthscope.models.design import shelves
    from depthscope.registry import TABLES

    def causal(remedy: Any) -> str:
        if remedy.at in ("attn", "weights", "values"):
            return "safe"
        return _pairs(remedy.causal) if remedy.causal else "no form"

    def about(thing: Any) -> str:  # the last part of some lines is the source
        *formula, source = _first_line(thing).split("    ")
        return "   ".join(formula or [source]).rstrip(".") + f"\n{thing.source}"

    shelves()
    ops = [
        [name, f"at {r.at}\ncausal: {causal(r)}\noff: {_pairs(r.off)}", about(r)]
        for name, r in sorted(TABLES["remedy"].items())
    ]
    wirings = [
        [name, f"wiring\ncausal: safe\noff: {w.plain}", about(w)]
        for name, w in sorted(TABLES["wiring"].items())
        if w.plain
    ]
    return ["remedy", "site, causal, off", "formula, source"], ops + wirings


def models() -> tuple[list[str], list[list[str]]]:
    from depthscope.models.design import shelves
    from depthscope.models.resolve import presets
    from depthscope.registry import TABLES

    shelves()
    rows = [["preset", name, _first_line(build)] for name, build in sorted(presets().items())]
    for table in ("wiring", "attention", "activation", "weight law"):
        rows += [[table, name, _first_line(part)] for name, part in TABLES[table].items()]
    return ["", "name", "what it is"], rows


def experiments() -> tuple[list[str], list[list[str]]]:
    from depthscope.experiments.run import shelf

    return ["experiment", "what it shows"], [list(row) for row in shelf()]


def tasks() -> tuple[list[str], list[list[str]]]:
    from depthscope.registry import TABLES
    from depthscope.training.tasks import names

    return ["task", "what it is"], [[name, _first_line(TABLES["task"][name])] for name in names()]


def _pairs(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in settings.items()
    )


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]
