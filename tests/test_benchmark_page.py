"""docs/benchmarks.md is written by benchmarks/page.py: sections that run are renewed, the others stay. No timings."""

import re
import sys
from pathlib import Path

import pytest

from depthscope.benches.grid import grid

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))
import before
import page
import peers


def test_the_page_is_what_the_script_writes() -> None:
    text = page.PAGE.read_text()
    assert page.written(text, {}) == text
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 100] == []


def test_a_section_is_renewed_and_the_others_stay() -> None:
    first = page.written("", {"grid": "ratio 1.07", "peers": "ratio 9.1\n\nmore"})
    assert first.count("Not run yet") == len(page.SECTIONS) - 2
    second = page.written(first, {"grid": "ratio 1.05"})
    assert "1.07" not in second and "ratio 1.05" in second and "ratio 9.1\n\nmore" in second
    assert re.findall(r"^## (.*)$", second, re.MULTILINE) == [one.title for one in page.SECTIONS.values()]


def test_every_script_has_a_section() -> None:
    scripts = {file.stem for file in (REPOSITORY / "benchmarks").glob("*.py")}
    assert scripts - {"_ratio", "page", "before"} == set(page.SECTIONS) - {"grid", "before"}


def test_before_and_now_are_measured_side_by_side(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes, each with the depthscope of its own tree, at the same time; an error of one is an error."""
    started: list[tuple[list[str], str]] = []

    class Run:
        def __init__(self, args: list[str], env: dict[str, str]) -> None:
            self.args = args
            started.append((args, env["PYTHONPATH"]))

        def wait(self) -> int:
            assert len(started) == 2  # none is waited for before both run
            return int(fails and "now" in self.args)

    monkeypatch.setattr(before.subprocess, "run", lambda *args, **kwargs: None)  # git
    monkeypatch.setattr(before.subprocess, "Popen", Run)
    monkeypatch.setattr(before, "BEFORE", tmp_path / "before.json")
    fails = False
    before.side_by_side("abc")
    (old, old_path), (new, new_path) = started
    assert old[-1] == "commit abc" and new[-1] == "now" and old_path != new_path == str(REPOSITORY / "src")
    started.clear()
    fails = True
    with pytest.raises(SystemExit, match="both trees must be measured"):
        before.side_by_side("abc")


def test_the_cells_before_and_after_are_cells_of_the_full_grid() -> None:
    sizes = {(c.kind, c.width, c.tokens, c.batch, c.depth) for c in grid("full")}
    assert set(before.SIZES) <= sizes and len(set(before.SIZES)) == len(before.SIZES)


def test_peers_agree_where_both_compute_a_number() -> None:
    times = {"tool": [3.0, 4.0], "plain": [1.0, 2.0]}
    assert peers.cost(times).split() == ["3.00", "(2.00-3.00)"]
    found = {
        "depthscope": {"numbers": {"t_sim": [0.5, 0.25], "entropy": [1.0]}},
        "hidden_states": {"numbers": {"t_sim": [0.5, 0.26], "t_div": [0.5, 0.74]}},
    }
    assert peers.agreement(found) == ["  t_sim of ds.scan and of hidden_states differ by 1.0e-02 at most"]


def test_numpy_on_hidden_states_computes_what_a_scan_computes() -> None:
    pytest.importorskip("transformers")
    model, ids = peers.subject((32, 2, 9, 2, 3))
    own, other = peers.by_depthscope(model, ids)(), peers.by_hidden_states(model, ids)()
    for name in ("t_sim", "t_cos"):
        assert other[name] == pytest.approx(own[name], abs=1e-6)
