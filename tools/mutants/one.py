"""One mutant in a process of its own: fork, import the broken module, run the tests that may notice it."""

import importlib
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tools.mutants.mutant import Mutant, seen, tests
from tools.mutants.source import ROOT, change

# Imported before the fork, where they are there: mutants share them.
WARM = "torch numpy hypothesis scipy.stats torch.utils.checkpoint torch._dynamo transformers accelerate optuna"
FIRST = 10  # tests that are tried first: importing more test files takes longer than most mutants live
LIKELY = 10.0  # seconds of tests that are tried then
SLOWER, START = 8, 10.0  # a test that takes so many times its time, and so many seconds, hangs
PATIENCE = 60  # seconds on the clock for one of the processor, which others may need: it waits for what never comes
MEMORY = 10 * 2**30
KILLED, LIVES, UNSEEN, FAULT = "killed", "lives", "unseen", "fault"
PASSED, FAILED = (0, 5), (1, 2)  # exit codes of pytest; 5: none of these tests is there any more; 2: nor can be read


class Chosen:
    """A plugin of pytest: these tests alone, in this order. A test that hangs ends the process."""

    def __init__(self, names: list[str]) -> None:
        self.order, self.failed = {name: i for i, name in enumerate(names)}, []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        limit = math.ceil(START + SLOWER * seen()[nodeid]["time"])
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + limit, resource.RLIM_INFINITY))
        signal.alarm(PATIENCE * limit)

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    pytest_collectreport = pytest_runtest_logreport  # a file that cannot be imported any more


def warm() -> None:
    for name in WARM.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def batches(mutant: Mutant, enough: float) -> list[list[str]]:
    """The tests that run the changed block: a few that are likely to notice, then the others, then their neighbours."""
    direct, neighbours = tests(mutant)
    found: list[list[str]] = [[], [], [], []]
    spent = 0.0
    for i, test in enumerate(direct + neighbours):
        spent += seen()[test]["time"]
        if spent > enough and found[0]:
            break
        found[3 if i >= len(direct) else 2 if spent > LIKELY else i >= FIRST].append(test)
    return [batch for batch in found if batch]


def outcome(mutant: Mutant, enough: float) -> dict:
    """What became of a mutant: killed, with the test that noticed it; lives; unseen, where no test runs its block.

    A fault is one of this tool: nothing is known of the mutant.
    """
    plan = batches(mutant, enough)
    if not plan:
        return {"outcome": UNSEEN}
    return _forked(lambda: _verdict(mutant, plan))


def control(names: list[str]) -> list[str]:
    """Which of these tests fail here though nothing is broken."""
    found = _forked(lambda: {"failed": _run(names)[1]}) if names else {"failed": []}
    if "failed" not in found:
        raise RuntimeError(f"mutants: the tests that noticed one must end with nothing broken; they did not: {found}.")
    return found["failed"]


def _forked(work) -> dict:  # type: ignore[no-untyped-def]
    """What work() has found in a child. One that tells nothing was ended by the mutant: it hangs, or ends."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            _child(work, Path(folder))
        _, status, used = os.wait4(child, 0)
        try:
            os.killpg(child, signal.SIGKILL)  # what it has started
        except ProcessLookupError:
            pass
        told = Path(folder, "told.json")
        result = json.loads(told.read_text()) if told.exists() else {"outcome": KILLED, "by": _ending(status)}
    return result | {"seconds": round(used.ru_utime + used.ru_stime, 1)}


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"no end: {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.WEXITSTATUS(status)}"


def _child(work, folder: Path) -> None:  # type: ignore[no-untyped-def]
    """Never returns."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(ROOT)
        tempfile.tempdir = str(folder)
        try:
            result = work()
        except Exception as error:
            result = {"outcome": FAULT, "by": repr(error)}
        signal.alarm(0)
        (folder / "told.part").write_text(json.dumps(result))
        (folder / "told.part").rename(folder / "told.json")
        os._exit(0)
    finally:
        os._exit(3)


def _verdict(mutant: Mutant, plan: list[list[str]]) -> dict:
    finder = change({mutant.file}, mutant.change)
    for names in plan:
        code, failed = _run(names, "-x")
        if code in FAILED:
            return {"outcome": KILLED, "by": failed[0]}
        if code not in PASSED:
            raise RuntimeError(f"pytest ends with {code}")
    if mutant.file not in finder.found:
        raise RuntimeError(f"{mutant.file} was not imported")
    return {"outcome": LIVES, "tests": sum(map(len, plan))}


def _run(names: list[str], *options: str) -> tuple[int, list[str]]:
    """These tests in this process: how pytest ends, and which of them fail."""
    from hypothesis import Phase, settings

    # A first failure is enough: nothing is made smaller, nothing is kept; the same cases every time.
    phases = [Phase.explicit, Phase.generate]
    settings.register_profile("mutants", database=None, phases=phases, deadline=None, derandomize=True)
    settings.load_profile("mutants")
    chosen = Chosen(names)
    files = list(dict.fromkeys(name.split("::")[0] for name in names))
    plain = ["-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no", f"--basetemp={tempfile.mkdtemp()}/base"]
    code = pytest.main([*plain, *options, *files], [chosen])
    sys.stdout.flush()
    return int(code), chosen.failed
