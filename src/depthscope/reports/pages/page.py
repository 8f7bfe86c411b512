"""Records into one HTML file: their stories, a template, and plotly.js, all in the file."""

import base64
import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depthscope.errors import MissingExtraError, UsageError
from depthscope.extras import install
from depthscope.files import whole_file
from depthscope.records import Record
from depthscope.reports.pages.downloads import csv_link, file_name, json_links, png_link
from depthscope.reports.pages.figures import description, figure
from depthscope.reports.pages.numbers import shown
from depthscope.reports.story import CHAPTERS, Story
from depthscope.reports.telling import told

HERE = files("depthscope.reports.pages")
LIBRARY = "vendor/plotly-cartesian.min.js"


def page(*records: Record | Mapping[str, Record], to: str | Path) -> Path:
    """Write records, or records by their labels, into one HTML file that needs nothing else."""
    stories = told(labelled(records))
    with whole_file(to) as part:
        part.write_text(html(stories), encoding="utf-8", errors="xmlcharrefreplace")
    return Path(to)


def labelled(given: tuple[Any, ...]) -> list[tuple[str, Record]]:
    """Every record with its label; "" where it has none."""
    pairs = [pair for one in given for pair in (one.items() if isinstance(one, Mapping) else [("", one)])]
    if not pairs or not all(isinstance(one, Record) for _, one in pairs):
        got = ", ".join(type(one).__name__ for _, one in pairs) or "nothing"
        raise UsageError(f"report: give one or more records, made by ds.scan or another verb; got {got}.")
    return [(str(label), part) for label, one in pairs for part in one.told_as()]


def html(stories: list[Story]) -> str:
    """The whole page."""
    figures = [figure(chart) for story in stories for chart in story.charts]
    library = _text(LIBRARY) if figures else ""
    own = _text("templates/page.js")
    policy = " ".join(f"'sha256-{_digest(script)}'" for script in (library, own))
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            stories=stories,
            links=iter(json_links(record for story in stories for record in story.records.values())),
            chapters=CHAPTERS,
            figures=json.loads(json.dumps(figures, allow_nan=False)),
            style=_text("templates/page.css"),
            library=library,
            script=own,
            policy=policy,
            versions=versions(),
        )
    )


def versions() -> dict[str, str]:
    """Of what wrote the page."""
    import torch

    return {"depthscope": version("depthscope"), "torch": torch.__version__, "Python": platform.python_version()}


def need_jinja() -> None:
    """Say at once what to install, before anything has been computed."""
    if find_spec("jinja2") is None:
        raise MissingExtraError(f"a page needs jinja2. {install('report')}")


@cache
def environment() -> Any:
    """Templates that escape whatever they are given."""
    need_jinja()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("depthscope.reports.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"shown": shown, "csv": csv_link, "png": png_link, "described": description, "next": next}
    made.globals |= {"file_name": file_name}
    made.tests["number"] = lambda value: isinstance(value, int | float)
    return made


@cache
def _text(name: str) -> str:
    return HERE.joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
