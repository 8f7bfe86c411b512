"""A full disk, a read-only folder, damaged files, two in one folder, a clock that jumps, a worker that hangs."""

import ctypes
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from tools.faults.commands import COMMANDS, SIZES, clear, depthscope, ended, nobody_left, started, whole
from tools.fuzz.loaders import damaged
from tools.reliability import Row

COMPARE, TRAIN, REPRODUCE, _ = COMMANDS
JUMPS = """
import random, sys, time
clock, chance = time.time, random.Random(0)
time.time = lambda: clock() + chance.uniform(-1e6, 1e6)
from depthscope.cli.main import run
sys.argv[0] = "depthscope"
run()
"""
HANGS = "import time\ndef setup():\n    time.sleep(600)\n"
STARTS = """
import os, subprocess, sys
subprocess.run([sys.executable, "-m", "depthscope.training.job", sys.argv[1], str(os.getpid())])
"""
CAPBSET_DROP, DAC_OVERRIDE = 24, 1  # of prctl and of capabilities(7)


def _obey_modes() -> None:
    """What is run from here on has no right beyond the modes of files, even as root."""
    if os.getuid() == 0:
        assert ctypes.CDLL(None).prctl(CAPBSET_DROP, DAC_OVERRIDE) == 0, "root cannot give up its rights here"


class Reference:
    """A training that was left alone: its folder, to copy, and its numbers."""

    def __init__(self, stack: ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        assert ended(started(TRAIN.words(self.folder)))[0] == 0
        self.numbers = TRAIN.numbers(self.folder)

    def again(self, folder: Path) -> None:
        code, said = ended(started(TRAIN.words(folder)))
        clear(code, said)
        assert code == 0 and TRAIN.numbers(folder) == self.numbers, f"other numbers: {said[-300:]}"


def full_disk(times: int, rng: Random, wanted: Reference) -> Row:
    """No file may be longer than so many bytes; then there is room again."""
    came: Counter[str] = Counter()
    for _ in range(times):
        most = rng.choice((0, 100, 1000, 5000, 20000, 60000))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            limit = lambda most=most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # noqa: E731
            code, said = ended(started(TRAIN.words(folder), preexec_fn=limit))
            clear(code, said)
            whole(folder)
            came["said so" if code else "had room"] += 1
            wanted.again(folder)
    return Row("`train` on a full disk, then with room", times, _words(came) + "; the same numbers")


def read_only(times: int, rng: Random, wanted: Reference) -> Row:
    """A folder in which one may not write; root may everywhere, until the right to is taken away."""
    for k in range(times):
        command = (COMPARE, TRAIN, REPRODUCE)[k % 3]
        with tempfile.TemporaryDirectory() as place:
            os.chmod(place, 0o555)
            code, said = ended(started(command.words(Path(place) / "in" / "it"), cwd="/", preexec_fn=_obey_modes))
            clear(code, said)
            assert code == 2 and "must be writable" in said, f"exit code {code}: {said[-300:]}"
            os.chmod(place, 0o755)
    return Row("`compare`, `train`, `reproduce` into a folder that is read-only", times, "one line, exit code 2")


def damage(times: int, rng: Random, wanted: Reference) -> Row:
    """A file of a training is cut off, emptied or has other bytes; the training is asked for again."""
    came: Counter[str] = Counter()
    for _ in range(times):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            shutil.copytree(wanted.folder, folder)
            newest = max(folder.glob("step_*"))
            victim = rng.choice([folder / "run.json", *newest.iterdir()])
            if victim.parent == newest:
                (folder / "run.json").unlink()
            victim.write_bytes(damaged(victim.read_bytes(), rng))
            came[victim.name] += 1
            wanted.again(folder)
    return Row("a checkpoint or `run.json` damaged, then `train` again", times, _words(came) + "; the same numbers")


def two_at_once(times: int, rng: Random, wanted: Reference) -> Row:
    """Two processes of one command in one folder, begun a moment apart."""
    with tempfile.TemporaryDirectory() as place:
        assert ended(started(COMPARE.words(Path(place))))[0] == 0
        numbers = COMPARE.numbers(Path(place))
    for _ in range(times):
        with tempfile.TemporaryDirectory() as place:
            first = started(COMPARE.words(Path(place)))
            time.sleep(rng.uniform(0, 4))
            second = started(COMPARE.words(Path(place)))
            for process in (first, second):
                code, said = ended(process)
                clear(code, said)
                assert code == 0, said[-300:]
            assert COMPARE.numbers(Path(place)) == numbers, "other numbers"
            whole(Path(place))
    return Row("two `compare` in one folder at once", times, "they share the runs; the same numbers")


def refused(times: int, rng: Random, wanted: Reference) -> Row:
    """A second training in the folder of one that runs."""
    came: Counter[str] = Counter()
    for _ in range(times):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            one, two = started(TRAIN.words(folder)), started(TRAIN.words(folder))
            codes = []
            for process in (one, two):
                code, said = ended(process)
                clear(code, said)
                assert code == 0 or "only one process may train there" in said, said[-300:]
                codes.append(code)
            assert 0 in codes and TRAIN.numbers(folder) == wanted.numbers
            came["one refused" if 2 in codes else "one after the other"] += 1
    return Row("two `train` in one folder at once", times, _words(came) + "; the same numbers")


def clock(times: int, rng: Random, wanted: Reference) -> Row:
    """A clock that jumps by days at every look, during a search."""
    words = ["compare", "digits", "--arms", "post_norm", "--seeds", "1", "--search", "2", "--processes", "2"]
    found = []
    for jumps in (False, *[True] * times):
        with tempfile.TemporaryDirectory() as place:
            line = [*words, *SIZES, "--epochs", "1", "--folder", place, "--quiet"]
            code, said = ended(started([sys.executable, "-c", JUMPS, *line] if jumps else depthscope(*line)))
            clear(code, said)
            assert code == 0, said[-300:]
            found.append(COMPARE.numbers(Path(place)))
            assert found[0] == found[-1], "other numbers"
    return Row("a clock that jumps by days, during `compare --search 2`", times, "the same numbers")


def hanging(times: int, rng: Random, wanted: Reference) -> Row:
    """A job that hangs in the user's own code; its command is asked to end, or killed."""
    for _ in range(times):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "hangs.py").write_text(HANGS)
            path = _job_that_hangs(folder)
            process = started([sys.executable, "-c", STARTS, str(path)], cwd=folder)
            until = time.monotonic() + 120
            while not (path.parent / "steps.txt").exists():
                assert time.monotonic() < until, "it never began"
                time.sleep(0.1)
            process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            nobody_left(folder)
            process.communicate()
    return Row("a worker that hangs, and its starter killed", times, "it ended within 30 s")


def _job_that_hangs(folder: Path) -> Path:
    from depthscope.training.build import Build
    from depthscope.training.job import Job
    from depthscope.training.recipe import Recipe

    own = Build(depth=1, d=8, h=2, q=8), Recipe(epochs=1)
    return Job("hangs", folder / "job", "own", {"setup": "hangs:setup"}, *own).write()


def _words(came: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(came.items()))


ALL: dict[str, tuple[Callable[[int, Random, Reference], Row], int]] = {
    "full_disk": (full_disk, 10),
    "read_only": (read_only, 6),
    "damage": (damage, 20),
    "two_at_once": (two_at_once, 4),
    "refused": (refused, 4),
    "clock": (clock, 3),
    "hanging": (hanging, 4),
}
