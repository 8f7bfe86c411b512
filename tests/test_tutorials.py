"""Every tutorial runs from top to bottom and shows what is kept in it; numbers may differ in their last digits."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
QUICK = "diagnose"  # the others take from eight seconds to a minute
CASES = [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem != QUICK)) for path in TUTORIALS]
NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|\binf\b")
PICTURES = ("image/png", "data:image/png;base64,")
SILENT = ("import ", "from ", "def ")  # cells that prepare the next


def said(cell: Any) -> list[str]:
    """What a cell shows, with # for every number: words of text, pictures by their kind."""
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {"text/plain": output.get("text", "")})
        found.append("a picture" if PICTURES[0] in data else " ".join(NUMBER.sub("#", data["text/plain"]).split()))
    return found


@pytest.mark.parametrize("path", CASES)
def test_a_tutorial_shows_what_is_kept_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    kept, now = nbformat.read(path, as_version=4), __import__("tutorials").run(path)
    assert [said(cell) for cell in now.cells] == [said(cell) for cell in kept.cells]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_words_come_first_and_pictures_follow(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds[0] == "markdown" and ("code", "code") not in {*pairwise(kinds)}
    assert [
        bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code" and not cell.source.startswith(SILENT)
    ]
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [one for one in shown if one.output_type == "error" or one.get("name") == "stderr"]
    assert any(kind in str(one.get("data", "")) for one in shown for kind in PICTURES)
    assert len(path.read_bytes()) < 600_000 and str(Path.home()) not in path.read_text()


def test_the_index_names_all_six() -> None:
    index = (ROOT / "docs" / "tutorials" / "index.md").read_text()
    assert len(TUTORIALS) == 6 and re.findall(r"\]\((\w+)\.ipynb\)", index) == [
        "diagnose", "fix_and_check", "forecast_a_design", "fair_comparison", "language_model_block_by_block", "watch_a_trainer_run",
    ]  # fmt: skip
