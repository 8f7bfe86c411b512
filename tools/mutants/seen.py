"""Which blocks of statements each test runs, and its processor time: out/mutants/seen/.

    python tools/mutants/seen.py                  all tests that are not known yet: a run that was stopped goes on
    python tools/mutants/seen.py tests/that.py    these again

A mark is set at the beginning of every block of the modules that mutants.py breaks.
"""

import ast
import hashlib
import json
import sys
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
from tools.mutants.source import ROOT, SOURCE, bodies, change, files

EVERY = 60  # seconds after which what is known is written
SEEN = ROOT / "out" / "mutants" / "seen"
WHOLE = SEEN / "whole"  # is there when all tests are known
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Marks:
    """A bytearray with one place for every block; `where` says which."""

    def __init__(self) -> None:
        self.hit, self.where = bytearray(), []

    def mark(self, file: str, module: ast.Module) -> ast.Module:
        for body in list(bodies(module)):
            documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
            at = int(documented)
            while at < len(body) and isinstance(body[at], ast.Global | ast.Nonlocal):
                at += 1
            mark = ast.parse(f"_hit[{len(self.where)}] = 1").body[0]
            for node in ast.walk(mark):
                node.lineno = node.end_lineno = body[0].lineno
                node.col_offset = node.end_col_offset = 0
            self.where.append((file, body[0].lineno, body[-1].end_lineno))
            self.hit.append(0)
            body.insert(at, mark)
        return module

    def take(self) -> list[int]:
        """The blocks that have run since the last call."""
        found = [k for k, hit in enumerate(self.hit) if hit]
        for k in found:
            self.hit[k] = 0
        return found


def processor() -> float:
    children = getrusage(RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Seen:
    """A plugin of pytest."""

    def __init__(self, marks: Marks, known: set[str]) -> None:
        self.known = known
        self.marks, self.tests, self.written = marks, {}, time.monotonic()
        self.name = time.time_ns()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.known]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):  # type: ignore[no-untyped-def]
        self.marks.take()
        begin = processor()
        result = yield
        seen = self.tests.setdefault(item.nodeid, {"parts": {}})
        seen |= {"time": round(processor() - begin, 4), "blocks": self.marks.take()}
        if time.monotonic() - self.written > EVERY:
            self.pytest_sessionfinish()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):  # type: ignore[no-untyped-def]
        begin = processor()
        try:
            return (yield)
        finally:
            self.tests.setdefault(item.nodeid, {"parts": {}})["parts"]["setup"] = round(processor() - begin, 4)

    def pytest_runtest_logreport(self, report):  # type: ignore[no-untyped-def]
        if report.failed:
            self.tests[report.nodeid]["failed"] = True

    def pytest_sessionfinish(self) -> None:
        SEEN.mkdir(parents=True, exist_ok=True)
        whole = SEEN / f"{self.name}.part"
        texts = {file: digest(file) for file in files()}
        whole.write_text(json.dumps({"blocks": self.marks.where, "tests": self.tests, "texts": texts}))
        whole.rename(whole.with_suffix(".json"))
        self.written = time.monotonic()


def digest(file: str) -> str:
    return hashlib.sha256((SOURCE / file).read_bytes()).hexdigest()


def known() -> dict[str, dict]:
    """Every test with its time and its blocks, (file, first line, last line), as the last run of it has seen them.

    Of a file that was edited since, it is only known that a test has run some of it: (file, 0, 0).
    """
    tests: dict[str, dict] = {}
    now = {file: digest(file) for file in files()}
    for path in sorted(SEEN.glob("*.json")):
        run = json.loads(path.read_text())
        same = {file for file, text in run["texts"].items() if now.get(file) == text}
        where = [tuple(block) if block[0] in same else (block[0], 0, 0) for block in run["blocks"]]
        ended = {name: facts for name, facts in run["tests"].items() if "time" in facts}
        tests |= {name: facts | {"blocks": {where[k] for k in facts["blocks"]}} for name, facts in ended.items()}
    return tests


if __name__ == "__main__":
    marks = Marks()
    change(set(files()), marks.mark, _hit=marks.hit)
    # Asserts stay plain: the hook that rewrites them would load the modules of a package with plugins before ours.
    options = ["-m", "not long and not pages", "-p", "no:cacheprovider", "--assert=plain", *sys.argv[1:]]
    code = pytest.main(options, [Seen(marks, set() if sys.argv[1:] else set(known()))])
    if not sys.argv[1:] and code in ENDED:
        WHOLE.touch()
    sys.exit(code)
