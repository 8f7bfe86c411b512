"""The tool that breaks the package: what it changes, which tests it chooses, what it writes."""

import ast
import importlib
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from tools.mutants import mutant, one, run, seen, source, table
from tools.mutants.mutations import mutations

from loops import over

COMPARED = "def f(x):\n    return x > 0"
GUARDED = "def f(x):\n    if x:\n        return 1\n    return 2"


def broken(text: str) -> set[tuple[str, str]]:
    """Every change of a module by its kind, as source."""
    found = set()
    for i in range(len(mutations(ast.parse(text)))):
        tree = ast.parse(text)
        _, kind, change = mutations(tree)[i]
        change()
        found.add((kind, ast.unparse(ast.fix_missing_locations(tree))))
    return found


@over(
    "text, kind, changed",
    [
        (COMPARED, "edge", COMPARED.replace(">", ">=")),
        (COMPARED, "comparison", COMPARED.replace(">", "<=")),
        (COMPARED, "constant + 1", COMPARED.replace("0", "1")),
        ("x = 0.5", "constant x 10", "x = 5.0"),
        ("x = True", "truth", "x = False"),
        ("x = a + b", "arithmetic", "x = a - b"),
        ("x /= a", "arithmetic", "x *= a"),
        ("x = a and b", "and, or", "x = a or b"),
        ("x = not a", "not", "x = not not a"),
        ("x = -a", "sign", "x = +a"),
        ("x = a if b else c", "choice", "x = a if not b else c"),
        ("x = y.double()", "precision", "x = y.float()"),
        ("x = f(y, dtype=torch.float64)", "precision", "x = f(y, dtype=torch.float32)"),
        ("x = f(y, keepdim=True)", "argument", "x = f(y)"),
        ("x = f(y, z)", "argument", "x = f(y)"),
        ("x = X.mean(-2, keepdim=True)", "constant + 1", "x = X.mean(-3, keepdim=True)"),
        ("if a:\n    f()", "statement", "if a:\n    pass"),
        ("a.b = c", "statement", "pass"),
        (GUARDED, "guard", GUARDED.replace("if x", "if False and x")),
        (GUARDED, "returned", GUARDED.replace("return 1", "return None")),
    ],
)
def test_each_kind_of_change(text: str, kind: str, changed: str) -> None:
    assert (kind, changed) in broken(text)
    assert all(result != text for _, result in broken(text))


@over(
    "text",
    ["x: Literal[1]", "'words'", "raise E(1 + 2)", "x = f'{1 + 2}'", "import a", "x = 'a' + b", "x = y"],
)
def test_what_computes_nothing_is_left_alone(text: str) -> None:
    assert not [kind for kind, _ in broken(text) if kind != "statement"]


def test_a_return_of_nothing_returns_nothing_already() -> None:
    assert {kind for kind, _ in broken("if a:\n    return None")} == {"guard"}


def test_a_sample_is_by_chance_repeatable_and_names_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant, "files", lambda: [f for f in source.files() if f.startswith("forecasts/")])
    everything = list(mutant.mutants())
    assert len({one.name for one in everything}) == len(everything) > 500
    few, more = mutant.sample(20, 0), mutant.sample(40, 0)
    assert few == more[:20] and few != mutant.sample(20, 1)
    for chosen in few:
        before, after = mutant.shown(chosen)
        assert before != after


def test_a_changed_module_is_compiled_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("depthscope.theory.path_counts")
    path = Path(str(module.__file__))
    text = path.read_text()
    file = str(path.relative_to(source.SOURCE))
    monkeypatch.delitem(sys.modules, module.__name__)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    finder = source.change({file}, lambda name, tree: ast.parse("changed = 3") if name == file else tree, given=7)
    assert not finder.found
    changed = importlib.import_module(module.__name__)
    assert (changed.changed, changed.given) == (3, 7) and path.read_text() == text and finder.found == {file}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(RuntimeError, match=r"path_counts.py'\] must be imported after they are changed"):
        source.change({file}, lambda name, tree: tree)


def test_marks_say_which_blocks_have_run() -> None:
    marks = seen.Marks()
    tree = marks.mark("file.py", ast.parse('"""Words."""\n\ndef f(x):\n    if x:\n        return 1\n    return 2\n'))
    names: dict = {"_hit": marks.hit}
    exec(compile(tree, "file.py", "exec"), names)
    lines = [marks.where[k][1:] for k in marks.take()]
    assert lines == [(1, 6)] and names["f"](0) == 2
    assert [marks.where[k][1:] for k in marks.take()] == [(4, 6)] and names["f"](1) == 1
    assert [marks.where[k][1:] for k in marks.take()] == [(4, 6), (5, 5)] and not marks.take()


def test_what_was_seen_last_counts_and_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "SEEN", tmp_path)
    monkeypatch.setattr(seen, "files", lambda: ["a.py"])
    monkeypatch.setattr(seen, "digest", lambda file: "text")
    for name, where in (("1", ("a.py", 1, 9)), ("2", ("a.py", 3, 4))):
        run = seen.Seen(seen.Marks(), {"old"})
        run.name, run.marks.where = name, [("b.py", 1, 1), where]
        run.tests = {"t": {"time": float(name), "blocks": [1]}, "stopped": {"parts": {}}}
        run.pytest_sessionfinish()
    assert seen.known() == {"t": {"time": 2.0, "blocks": {("a.py", 3, 4)}}}
    monkeypatch.setattr(seen, "digest", lambda file: "edited")
    assert seen.known() == {"t": {"time": 2.0, "blocks": {("a.py", 0, 0)}}}  # its lines have moved
    items: list = [SimpleNamespace(nodeid="old"), SimpleNamespace(nodeid="new")]
    run.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["new"]


def test_the_quick_tests_that_run_the_block_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    file = "metrics/similarity.py"
    function = next(node for node in source.tree(file).body if isinstance(node, ast.FunctionDef))
    body = (file, function.body[0].lineno, function.body[-1].end_lineno)
    other = (file, 10**6, 10**6)
    facts = {
        "tests/scans/a.py::slow": (9.0, {body}),
        "tests/scans/a.py::quick": (1.0, {body, other}),
        "tests/scans/a.py::near": (0.1, {other}),
        "tests/metrics/b.py::own": (2.0, {body}),
        "tests/metrics/c.py::far": (0.1, {other}),
        "tests/metrics/d.py::edited": (3.0, {(file, 0, 0)}),
        "tests/scans/e.py::similarity": (1.5, {body}),
    }
    monkeypatch.setattr(mutant, "seen", lambda: {t: {"time": s, "blocks": b} for t, (s, b) in facts.items()})
    chosen = mutant.Mutant(file, 0, function.body[-1].lineno, "edge", f"{file} A.f edge 1")
    assert mutant.named(chosen) == ["similarity"]
    direct, others = mutant.tests(chosen)
    assert [t.split("::")[1] for t in direct] == ["similarity", "own", "edited", "quick", "slow"] and others == [
        "tests/scans/a.py::near"
    ]
    monkeypatch.setattr(one, "seen", mutant.seen)
    monkeypatch.setattr(one, "FIRST", 3)
    monkeypatch.setattr(one, "LIKELY", 8.0)
    assert [len(batch) for batch in one.batches(chosen, 99.0)] == [3, 1, 1, 1]
    assert [len(batch) for batch in one.batches(chosen, 8.0)] == [3, 1]


@over(
    "work, found",
    [
        (lambda: {"outcome": "lives"}, {"outcome": "lives"}),
        (lambda: 1 / 0, {"outcome": "fault", "by": "ZeroDivisionError('division by zero')"}),
        (lambda: os._exit(7), {"outcome": "killed", "by": "exit 7"}),
        (
            lambda: (signal.setitimer(signal.ITIMER_REAL, 0.05), time.sleep(9)),
            {"outcome": "killed", "by": "no end: SIGALRM"},
        ),
    ],
)
def test_a_child_tells_what_it_has_found_or_how_it_ended(work, found: dict) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Python 3.12 on: of threads beside a fork
        assert one._forked(work).items() >= found.items()


def test_a_test_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(one, "seen", lambda: {"a": {"time": 5.0}})
    monkeypatch.setattr(one.resource, "setrlimit", lambda kind, pair: limits.append(pair[0]))
    monkeypatch.setattr(one.signal, "alarm", limits.append)
    one.Chosen(["a"]).pytest_runtest_logstart("a")
    assert limits[0] - time.process_time() == pytest.approx(10 + 8 * 5, abs=1.1) and limits[1] == 3000


@over(
    "code, failed, found",
    [
        (1, ["t"], {"outcome": "killed", "by": "t"}),
        (2, ["file"], {"outcome": "killed", "by": "file"}),
        (0, [], {"outcome": "lives", "tests": 2}),
        (3, [], "pytest ends with 3"),
        (4, [], "pytest ends with 4"),
    ],
)
def test_only_a_test_that_fails_kills(code: int, failed: list, found, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = mutant.Mutant("a.py", 0, 1, "edge", "")
    monkeypatch.setattr(one, "change", lambda files, how: SimpleNamespace(found=files))
    monkeypatch.setattr(one, "_run", lambda names, *options: (code, failed))
    if isinstance(found, dict):
        assert one._verdict(chosen, [["s", "t"]]) == found
        return
    with pytest.raises(RuntimeError, match=found):
        one._verdict(chosen, [["s", "t"]])


def test_a_mutant_that_was_not_imported_is_no_survivor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one, "change", lambda files, how: SimpleNamespace(found=set()))
    monkeypatch.setattr(one, "_run", lambda names, *options: (0, []))
    with pytest.raises(RuntimeError, match=r"a.py was not imported"):
        one._verdict(mutant.Mutant("a.py", 0, 1, "edge", ""), [["t"]])


def test_a_test_that_fails_with_nothing_broken_notices_no_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (mutant, run):
        monkeypatch.setattr(module, "CONTROL", tmp_path / "control.json")
    monkeypatch.setattr(mutant, "known", lambda: {name: {"time": 1.0, "blocks": set()} for name in "abc"})
    monkeypatch.setattr(run, "control", lambda names: [name for name in names if name == "b"])
    mutant.seen.cache_clear()
    found = [{"outcome": "killed", "by": name} for name in "ab"] + [{"outcome": "lives"}]
    assert run.judge(found) == {"b"} and set(mutant.seen()) == {"a", "c"}
    assert json.loads((tmp_path / "control.json").read_text()) == {"sound": ["a"], "unsound": ["b"]}
    monkeypatch.setattr(run, "control", lambda names: 1 / 0 if names else [])  # who is known is not asked again
    assert run.judge(found) == {"b"}
    mutant.seen.cache_clear()


def test_what_is_known_of_a_mutant_is_forgotten_when_its_line_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(run, "shown", lambda chosen: ("x < 1", "x > 1"))
    lines = [{"name": "n", "line": 3, "after": "x > 1", "outcome": way} for way in ("lives", "killed")]
    run.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chosen = mutant.Mutant("a.py", 0, 5, "edge", "n")
    known = run.known([chosen])["n"]
    assert (known["outcome"], known["line"]) == ("killed", 5)
    monkeypatch.setattr(run, "shown", lambda chosen: ("x < 2", "x > 2"))
    assert not run.known([chosen])


@over(
    "outcome, why, again, settled",
    [
        ("killed", "", True, True),
        ("lives", "", False, True),
        ("lives", "", True, False),
        ("lives", "Both are zero.", True, True),
        ("unseen", "", True, False),
        ("fault", "", False, False),
    ],
)
def test_what_is_known_is_not_tried_again(
    outcome: str, why: str, again: bool, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "reason", lambda result: why)
    assert run.settled({"outcome": outcome}, again) == settled and not run.settled(None, again)


def test_the_section_of_a_page_is_renewed_and_the_rest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [
        {"name": "same", "before": "x < 1", "after": "x > 1", "reason": "Both are zero."},
        {"name": "lives", "before": "x < 7", "after": "x > 7", "reason": "Of a line that has changed since."},
    ]
    (tmp_path / "equivalent.json").write_text(json.dumps(reasons))
    monkeypatch.setattr(table, "REASONS", tmp_path / "equivalent.json")
    kinds = {"a": "killed", "same": "lives", "lives": "lives"}
    found = [
        {"name": name, "file": "metrics/a.py", "line": 3, "before": "x < 1", "after": "x > 1", "outcome": outcome}
        for name, outcome in kinds.items()
    ]
    page = tmp_path / "reliability.md"
    page.write_text("# Reliability\n\nBefore.\n")
    table.write(page, found[:1], 1, 0)
    page.write_text(page.read_text() + "\nAfter.\n")
    table.write(page, found, 3, 0)
    text = page.read_text()
    assert (
        text.startswith("# Reliability\n\nBefore.\n") and text.endswith("\nAfter.\n") and text.count("## Mutants") == 1
    )
    assert "| metrics | 3 | 1 | 1 | 1 |" in text and "1 of 3, 33.3%" in " ".join(text.split())
    assert "Both are zero." in text and "changed since" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
