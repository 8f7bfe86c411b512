"""One mutant in a process of its own: fork, import the broken module, run the tests that may notice it."""

import importlib
import json
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
LIKELY = 20.0  # seconds of tests that are tried first
ENOUGH = 240.0  # seconds of tests after which a mutant is said to live
START = 60.0  # seconds for imports
SLOWER = 4  # a mutant that takes so many times the time of its tests hangs
MEMORY = 10 * 2**30
KILLED, LIVES, UNSEEN = "killed", "lives", "unseen"


class Chosen:
    """A plugin of pytest: these tests alone, in this order, to the first that fails."""

    def __init__(self, names: list[str]) -> None:
        self.order, self.failed = {name: i for i, name in enumerate(names)}, ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


def warm() -> None:
    for name in WARM.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def batches(mutant: Mutant) -> list[list[str]]:
    """The tests that run the changed block: a few that are likely to notice, then the others, then their neighbours."""
    direct, neighbours = tests(mutant)
    found: list[list[str]] = [[], [], []]
    spent = 0.0
    for test in direct + neighbours:
        spent += seen()[test]["time"]
        if spent > ENOUGH and found[0]:
            break
        found[2 if test in neighbours else spent > LIKELY].append(test)
    return [batch for batch in found if batch]


def outcome(mutant: Mutant) -> dict:
    """What became of a mutant: killed, with the test that noticed it; lives; unseen, where no test runs its block."""
    plan = batches(mutant)
    if not plan:
        return {"outcome": UNSEEN}
    limit = START + SLOWER * sum(seen()[test]["time"] for batch in plan for test in batch)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:
            _run(mutant, plan, int(limit), Path(folder))
        _, status = os.waitpid(child, 0)
        try:
            os.killpg(child, signal.SIGKILL)  # what it has started
        except ProcessLookupError:
            pass
        told = Path(folder, "told.json")
        result = json.loads(told.read_text()) if told.exists() else {"outcome": KILLED, "by": _ending(status)}
    return result | {"seconds": round(time.monotonic() - begin, 1)}


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"no end: {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit {os.WEXITSTATUS(status)}"


def _run(mutant: Mutant, plan: list[list[str]], limit: int, folder: Path) -> None:
    """In the child: never returns."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        signal.alarm(20 * limit)  # it waits for what never comes
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(ROOT)
        _quick_hypothesis()
        change({mutant.file}, mutant.change)
        result = {"outcome": LIVES, "tests": sum(map(len, plan))}
        for number, names in enumerate(plan):
            chosen = Chosen(names)
            files = list(dict.fromkeys(name.split("::")[0] for name in names))
            options = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--tb=no"]
            code = pytest.main([*options, f"--basetemp={folder}/{number}", *files], [chosen])
            if code not in (0, 5):
                result = {"outcome": KILLED, "by": chosen.failed or "no test can be imported"}
                break
        (folder / "told.part").write_text(json.dumps(result))
        (folder / "told.part").rename(folder / "told.json")
    except BaseException as error:
        os.write(2, repr(error).encode())
    finally:
        sys.stdout.flush()
        os._exit(3)


def _quick_hypothesis() -> None:
    """A first failure is enough: nothing is made smaller, nothing is kept."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", database=None, phases=[Phase.explicit, Phase.generate], deadline=None)
    settings.load_profile("mutants")
