"""Every tutorial runs from top to bottom and shows what is kept in it; numbers may differ in their last digits."""

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|\binf\b")
BARS = re.compile("[▁▂▃▄▅▆▇█─╭╮╰╯│┤└ ]+")


def said(cell: Any) -> list[str]:
    """What a cell shows, without numbers and frames: words of text, kinds of pictures."""
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {"text/plain": output.get("text", "")})
        words = BARS.sub(" ", NUMBER.sub("#", data.get("text/plain", "")))
        found.append(" ".join(words.split()) if "image/png" not in data else "a picture")
    return found


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_shows_what_is_kept_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PYTHONWARNINGS", "error::UserWarning")
    tutorials = __import__("tutorials")
    kept, now = nbformat.read(path, as_version=4), tutorials.run(path)
    assert [said(cell) for cell in now.cells] == [said(cell) for cell in kept.cells]
    shown = [output for cell in kept.cells for output in cell.get("outputs", [])]
    assert not [one for one in shown if one.output_type == "error" or one.get("name") == "stderr"]


def test_there_are_six_with_pictures_and_words_before_every_code() -> None:
    assert len(TUTORIALS) == 6 and sys.modules
    for path in TUTORIALS:
        notebook = nbformat.read(path, as_version=4)
        kinds = [cell.cell_type for cell in notebook.cells]
        assert kinds[0] == "markdown" and ("code", "code") not in set(zip(kinds, kinds[1:], strict=False)), path
        shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        assert any("image/png" in output.get("data", {}) for output in shown), path
        assert all(cell.outputs or cell.source.startswith(("import", "%%writefile", "def ")) for cell in notebook.cells
                   if cell.cell_type == "code"), path  # fmt: skip
        assert len(path.read_bytes()) < 600_000
