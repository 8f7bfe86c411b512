"""The pages of docs/reference that are made from the code: python tools/site/reference.py [FOLDER]

Tables come from the shelves, commands from the options that typer declares, the API from the public names.
"""

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any

import typer
from typer.main import get_command

import depthscope as ds
from depthscope.cli.main import app
from depthscope.cli.shelves import rows_of
from depthscope.notation import markdown

HOME = Path(__file__).parents[2] / "docs" / "reference"
MADE = "<!-- Made by tools/site/reference.py; `make docs` renews it. -->\n"
SHELVES = {
    "metrics": "What `ds.scan` can measure. Each is also a function, `ds.metrics.t_sim(X, mask=mask)`.",
    "remedies": "What `ds.fix_` and `--fix` put into a model, and the wirings of the reference models.",
    "models": "What MODEL may be called on the command line, and the parts of `ds.models.classic`.",
    "tasks": "What `depthscope compare` and `depthscope train` can train on.",
    "experiments": "What `depthscope reproduce` runs.",
}
API = {  # package -> what its page says first; "" is depthscope itself
    "": "The verbs and the records that they return. `import depthscope as ds`.",
    "metrics": "Pure functions of tokens and attention. `X` is `(..., n, d)`; all sums are in float64.",
    "theory": "The papers' formulas on numbers: no model is needed.",
    "models": "Reference models at random initialisation, in the letters of the papers.",
    "remedies": "What `ds.fix_` puts into a model.",
    "experiments": "What `ds.reproduce` returns.",
    "integrations": "depthscope in other tools.",
    "errors": "What can go wrong. Every message says where, what must hold, what came and what to do.",
}


def pages() -> dict[str, str]:
    """The text of every generated page, by the name of its file."""
    made = {"notation.md": markdown() + "\n", "cli.md": commands()}
    made |= {f"{name}.md": shelf(name, says) for name, says in SHELVES.items()}
    made |= {f"api-{package or 'depthscope'}.md": api(package, says) for package, says in API.items()}
    return made


def shelf(name: str, says: str) -> str:
    """One table, as `depthscope ls` shows it."""
    columns, rows = rows_of(name)
    lines = [f"# {name.capitalize()}", "", MADE, says, f"The same list: `depthscope ls {name}`.", ""]
    lines += [_row([column or " " for column in columns]), "|" + "---|" * len(columns)]
    first = 1 if name == "models" else 0  # the column with the names
    return "\n".join([*lines, *(_row([_cell(text, i == first) for i, text in enumerate(row)]) for row in rows)]) + "\n"


def commands() -> str:
    """All commands with their arguments and options."""
    group: Any = get_command(app)
    lines = ["# Commands", "", MADE, "`depthscope COMMAND --help` shows the same in the terminal.", ""]
    lines += ["Exit codes: 0 fine; 1 a claim or a gate fails; 2 wrong use, with what to do.", ""]
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"depthscope {name}")
        lines += [f"## depthscope {name}", "", *_told(command.help), ""]
        lines += ["| option | what it does |", "|---|---|"]
        for parameter in command.params:
            named, says = parameter.get_help_record(context) or (parameter.human_readable_name, "")
            lines.append(f"| `{_plain(named)}` | {_plain(says)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def api(package: str, says: str) -> str:
    """One `:::` of mkdocstrings for each public name."""
    home = getattr(ds, package) if package else ds
    title = f"ds.{package}" if package else "depthscope"
    lines = [f"# {title}", "", MADE, says, ""]
    for name, path in public(home):
        lines += [f"::: {path}", f"    options: {{heading: {name}, toc_label: {name}}}", ""]
    return "\n".join(lines).rstrip() + "\n"


def public(home: Any) -> Iterator[tuple[str, str]]:
    """The public names of a package and where each is defined; modules and what comes from elsewhere left out."""
    names = getattr(home, "__all__", None) or [name for name in dir(home) if not name.startswith("_")]
    for name in names:
        thing = getattr(home, name)
        ours = str(getattr(thing, "__module__", "")).startswith("depthscope")
        helper = home is ds.errors and not inspect.isclass(thing)
        if ours and callable(thing) and not helper:
            yield name, f"{thing.__module__}.{name}"


def _told(text: str | None) -> list[str]:
    return [fill(_plain(part), 98, break_on_hyphens=False) + "\n" for part in (text or "").split("\n\n")]


def _plain(text: str) -> str:
    text = re.sub(r"\\(\[)", r"\1", " ".join(text.split()))
    return text.replace("|", "\\|")


def _cell(text: str, is_name: bool) -> str:
    safe = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("\n", "<br>")
    return f"`{text}`" if is_name and text else safe


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HOME
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
