"""Every command and every block of Python that a page shows is run, or, where a machine cannot, at least understood.

Blocks marked `sh` are run line by line, in a folder with the files of the gate page and a short text. Commands in other
blocks and inside sentences (they train for long, need a cluster, or name a MODEL of yours) are parsed: their options
must exist.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from depthscope.cli.main import app

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
OWN = {
    "gate",
    "monitor",
    "depth",
    "ship-a-fix",
    "torchmetrics",
    "compare-your-model",
    "add",
    "many-machines",
    "large-models",
}
PAGES = [REPOSITORY / "README.md"] + [
    page for room in ("start", "how-to", "explanation") for page in sorted((DOCS / room).glob("*.md"))
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SLOW = ("compare", "train", "reproduce")  # commands that take more than a few seconds


def blocks(page: Path, kind: str) -> list[str]:
    return [code for one, code in BLOCK.findall(page.read_text(encoding="utf-8")) if one == kind]


def lines(page: Path) -> list[str]:
    """Commands that are run; the gate page has a test of its own."""
    if page.stem in OWN:
        return []
    return [line for code in blocks(page, "sh") for line in code.splitlines() if line.strip()]


def named(page: Path) -> list[str]:
    """All other commands of a page."""
    text = page.read_text(encoding="utf-8")
    plain = [line for code in blocks(page, "") for line in code.replace("\\\n", " ").splitlines()]
    inside = re.findall(r"`(depthscope [a-z][^`]*)`", BLOCK.sub("", text).replace("\n", " "))
    return [re.sub(r"\s+#.*", "", line) for line in [*plain, *inside] if line.startswith("depthscope ")]


ALL = sorted({line for page in PAGES for line in lines(page)})
PYTHON = [page for page in PAGES if page.stem not in OWN and page.name != "README.md" and blocks(page, "python")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a model and a batch, as on the gate page, and a text."""
    [code] = [code for code in blocks(DOCS / "how-to" / "gate.md", "python") if code.startswith("# my_package/")]
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "models.py").write_text(code.replace("layer, 24", "layer, 6"))
    (tmp_path / "my.txt").write_text("Tokens that are all alike tell nothing. " * 40)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("my_package")]:  # of the test before
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.long if line.split()[1] in SLOW else ()) for line in ALL]
)
@pytest.mark.filterwarnings("ignore")
def test_the_command_runs(line: str, project: Path) -> None:
    program, *words = shlex.split(line)
    assert program == "depthscope"
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_the_other_commands_are_understood(page: Path) -> None:
    group: Any = get_command(app)
    for line in named(page):
        _, command, *words = shlex.split(line)
        spoken_of = not words or "--help" in words
        if group.commands[command] and not spoken_of:
            group.commands[command].make_context(command, [word for word in words if word != "..."])


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore")
def test_the_python_runs(page: Path, project: Path) -> None:
    names: dict[str, Any] = {}
    for code in blocks(page, "python"):
        exec(code, names)


def test_no_page_is_left_out() -> None:
    assert len(ALL) > 20 and len(PYTHON) > 10
    assert OWN <= {page.stem for page in PAGES}
