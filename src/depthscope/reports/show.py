"""How records are shown: the table of who shows which, and the one text and one picture for all of them.

A module of reports tells about one kind of record: sheets(record), draw(record, figure), the SIZE of a new figure (or
a function that gives it), and the WIDTH of its text. They are imported when such a record is shown.
"""

import io
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from depthscope.errors import MissingExtraError
from depthscope.extras import install
from depthscope.files import whole_file
from depthscope.records import Record
from depthscope.reports.sheet import UNPRINTABLE
from depthscope.reports.story import Tone

MODULES = {
    "depthscope.scan": "scans",
    "depthscope.forecast": "forecasts",
    "depthscope.advice": "advice",
    "depthscope.bounds": "bounds",
    "depthscope.paths": "paths",
    "depthscope.spectrum": "spectrum",
    "depthscope.ablations": "ablations",
    "depthscope.depth": "depths",
    "depthscope.comparison": "comparisons",
    "depthscope.run": "runs",
    "depthscope.reproduction": "reproductions",
    "depthscope.checkup": "checkups",
    "depthscope.bench": "benches",
    "depthscope.monitor": "monitors",
    "depthscope.gate": "gates",
}
TONES: dict[str, Tone] = {"green": "good", "yellow": "warn", "red": "bad"}  # of the styles of sheets


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
    console = Console(file=io.StringIO(), width=wide, color_system=None, force_jupyter=False)
    console.print(record.view())
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def html(record: Record) -> str | None:
    """A card for notebooks; None, so that they show the text, where jinja2 is missing."""
    from depthscope.reports.pages.card import card

    return card(record)


def html_of_words(title: str, status: str, said: list[str]) -> str | None:
    """The same of words alone, in the colour of their status."""
    from depthscope.reports.pages.card import short_card
    from depthscope.reports.scans import STYLE

    return short_card(title, status, TONES[STYLE.get(status, "red")], said)


def markdown(record: Record) -> str:
    """Lines and tables for a page of Markdown; curves are left to HTML and pictures."""
    return "\n".join(sheet.markdown() for sheet in module_for(record).sheets(record))


def draw(record: Record, figure: Any = None) -> Any:
    """Draw into a matplotlib figure, a new one if none is given; returns it."""
    module = module_for(record)
    if figure is None:
        figure = new_figure(module.SIZE(record) if callable(module.SIZE) else module.SIZE)
    module.draw(record, figure)
    if record.FORMAT != "depthscope.reproduction":  # in whose pictures we write formulas
        _taken_literally(figure)
    return figure


def _taken_literally(figure: Any) -> None:
    """A model may be called anything, also what matplotlib would take for a formula, or cannot draw."""
    from matplotlib.text import Text

    for words in (one for one in figure.findobj(Text) if one.get_text()):
        words.set_parse_math("$" not in words.get_text())
        words.set_text(UNPRINTABLE.sub("?", words.get_text()))


def new_figure(size: tuple[float, float]) -> Any:
    need_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def need_matplotlib() -> None:
    """Say at once what to install, before anything has been computed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError(f"a picture needs matplotlib. {install('plot')}")


def picture(record: Record, to: str | Path) -> Path:
    """Draw a record into a file, as PNG, SVG or PDF by its name; the whole file or none."""
    figure = record.draw()
    with whole_file(to) as part:
        figure.savefig(part, dpi=140)
    return Path(to)
