"""The commands that faults meet, on tiny settings; what is left of one that was killed, and whether it is whole."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import depthscope as ds
from depthscope.experiments.run import read_results
from depthscope.training import checkpoint

TIMES = ("seconds", "crc32", "reused", "created")  # what two runs of the same command do not share
SIZES = "--depth 1 --d 8 --h 2 --q 8 --set train=128".split()
WAIT = 300.0  # seconds that a command may take before it counts as hanging
MONITORED = """
import sys, torch, depthscope as ds
from pathlib import Path
torch.manual_seed(0)
model, X = ds.models.classic(depth=2, d=16, h=2), torch.randn(4, 8, 16)
monitor = ds.Monitor(model, X, every=1)
rate = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(40):
    monitor.step(step)
    rate.zero_grad(); model(X).square().mean().backward(); rate.step()
    monitor.history.save(Path(sys.argv[1]) / "history.json")
"""


@dataclass(frozen=True)
class Command:
    """words(folder): the command line. numbers(folder): what it is to come to, however often it was killed."""

    name: str
    words: Callable[[Path], list[str]]
    numbers: Callable[[Path], Any]


def depthscope(*words: str) -> list[str]:
    return [sys.executable, "-m", "depthscope", *words]


def _compare(folder: Path) -> list[str]:
    arms = ["--arms", "post_norm,pre_norm", "--seeds", "1", "--no-caveat", "--processes", "1", "--epochs", "6"]
    return depthscope("compare", "digits", *arms, *SIZES, "--folder", str(folder), "--quiet")


def _train(folder: Path) -> list[str]:
    often = ["--epochs", "60", "--every-steps", "3"]
    return depthscope("train", "digits", *often, *SIZES, "--folder", str(folder), "--quiet")


def _reproduce(folder: Path) -> list[str]:
    return depthscope("reproduce", "yu2023/fig8", "--smoke", "--out", str(folder), "--quiet")


def _monitor(folder: Path) -> list[str]:
    return [sys.executable, "-c", MONITORED, str(folder)]


def without_times(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: without_times(one) for key, one in record.items() if key not in TIMES}
    return [without_times(one) for one in record] if isinstance(record, list) else record


def _record(name: str) -> Callable[[Path], Any]:
    def numbers(folder: Path) -> Any:
        found = without_times(ds.load(folder / name).to_dict())
        found.pop("notes", None)  # that something was damaged, and made good
        return found

    return numbers


def _results(folder: Path) -> Any:
    return without_times(read_results(folder / "yu2023_smoke" / "results.json"))


COMMANDS = [
    Command("compare", _compare, _record("comparison.json")),
    Command("train", _train, _record("run.json")),
    Command("reproduce", _reproduce, _results),
    Command("monitor", _monitor, _record("history.json")),
]


def started(words: list[str], **options: Any) -> subprocess.Popen[str]:
    """A command in a group of processes of its own, so that ^C can be sent to it as a terminal does."""
    own: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(words, start_new_session=True, env=environment, **own | options)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what was said."""
    said, _ = process.communicate(timeout=WAIT)
    return process.returncode, said


def clear(code: int, said: str) -> None:
    """What a command that could not do its work says: one clear line, and no traceback."""
    assert "Traceback" not in said, f"a traceback: {said[-300:]}"
    assert code == 0 or said.strip(), f"exit code {code} and not a word"


def whole(folder: Path) -> None:
    """Every file that has its name is whole: what is half written has another name."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in sorted(folder.rglob("*.json")):
            if path.name == "results.json":
                read_results(path)
            elif path.name == "job.json" or path.name.startswith("part-"):
                continue
            elif path.name == "state.json":
                saved = checkpoint.latest(path.parents[1])
                assert path.parent.name.startswith("part-") or (saved is not None and not saved.ignored), (
                    f"torn: {path}"
                )
            else:
                json.loads(path.read_text())
                ds.load(path)


def nobody_left(folder: Path, seconds: float = 30.0) -> None:
    """No process of the command is there any more."""
    until = time.monotonic() + seconds
    while left := [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, folder)]:
        assert time.monotonic() < until, f"still there: {[p.info['cmdline'] for p in left]}"
        time.sleep(0.2)


def _is_of(process: Any, folder: Path) -> bool:
    words = process.info["cmdline"] or ()
    return process.pid != os.getpid() and any(word.startswith(str(folder)) for word in words)
