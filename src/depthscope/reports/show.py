"""How records are shown: the table of who shows which, and the one text, one page and one picture for all of them.

A module of reports tells about one kind of record: sheets(record), draw(record, figure), the SIZE of a new figure (or
a function that gives it), and the WIDTH of its text. They are imported when such a record is shown.
"""

import io
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from depthscope.errors import MissingExtraError, UsageError
from depthscope.files import whole_file
from depthscope.records import Record

MODULES = {
    "depthscope.scan": "scans",
    "depthscope.forecast": "forecasts",
    "depthscope.advice": "advice",
    "depthscope.bounds": "bounds",
    "depthscope.paths": "paths",
    "depthscope.spectrum": "spectrum",
    "depthscope.ablations": "ablations",
    "depthscope.comparison": "comparisons",
    "depthscope.run": "runs",
    "depthscope.reproduction": "reproductions",
    "depthscope.checkup": "checkups",
    "depthscope.bench": "benches",
    "depthscope.monitor": "monitors",
}
CSS = (
    "body{font-family:system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#222}"
    ".ds-scan table{border-collapse:collapse;font-size:13px;margin:.6em 0}"
    ".ds-scan td,.ds-scan th{padding:2px 9px;text-align:right;border-bottom:1px solid #eee}"
    ".ds-scan .dim{color:#666;font-size:13px}.ds-scan{margin-bottom:2.5em}.ds-note{color:#935116}"
)


def module_for(record: Record) -> ModuleType:
    """The module that shows this kind of record; a kind that none knows is shown field by field."""
    return import_module(f"depthscope.reports.{MODULES.get(record.FORMAT, 'any_record')}")


def view(record: Record) -> Any:
    """A rich renderable."""
    from rich.console import Group

    return Group(*(sheet.view() for sheet in module_for(record).sheets(record)))


def text(record: Record, width: int | None = None) -> str:
    """The same as plain text."""
    from rich.console import Console

    wide = width or getattr(module_for(record), "WIDTH", 110)
    console = Console(file=io.StringIO(), width=wide, color_system=None)
    console.print(record.view())
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def html(record: Record) -> str:
    """A fragment of HTML without outside references."""
    return "".join(sheet.html() for sheet in module_for(record).sheets(record))


def markdown(record: Record) -> str:
    """Lines and tables for a page of Markdown; curves are left to HTML and pictures."""
    return "\n".join(sheet.markdown() for sheet in module_for(record).sheets(record))


def draw(record: Record, figure: Any = None) -> Any:
    """Draw into a matplotlib figure, a new one if none is given; returns it."""
    module = module_for(record)
    if figure is None:
        figure = new_figure(module.SIZE(record) if callable(module.SIZE) else module.SIZE)
    module.draw(record, figure)
    return figure


def new_figure(size: tuple[float, float]) -> Any:
    need_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def need_matplotlib() -> None:
    """Say at once what to install, before anything has been computed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("a picture needs matplotlib. pip install 'depthscope[plot]'")


def picture(record: Record, to: str | Path) -> Path:
    """Draw a record into a file, as PNG, SVG or PDF by its name; the whole file or none."""
    figure = record.draw()
    with whole_file(to) as part:
        figure.savefig(part, dpi=140)
    return Path(to)


def page(*records: Record, to: str | Path) -> Path:
    """Write records into one HTML page that needs nothing else: the curves of all scans together, then each record."""
    if not records or not all(isinstance(one, Record) for one in records):
        got = ", ".join(type(one).__name__ for one in records) or "nothing"
        raise UsageError(f"report: give one or more records, made by ds.scan or another verb; got {got}.")
    body = "".join(one._repr_html_() for one in records)
    scans: list[Any] = [one for one in records if one.FORMAT == "depthscope.scan"]
    if len(scans) > 1:
        from depthscope.reports.scans import together

        body = together(scans).html() + body
    with whole_file(to) as part:
        part.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>depthscope report</title>'
            f"<style>{CSS}</style></head>"
            f"<body><h1>depthscope</h1><p>Where do the tokens grow alike, and why?</p>{body}</body></html>",
            encoding="utf-8",
        )
    return Path(to)
