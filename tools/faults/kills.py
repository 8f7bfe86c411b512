"""Commands that are killed at random moments, again and again, and then left alone: the same numbers, nothing torn."""

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

from tools.faults.commands import Command, clear, ended, nobody_left, started, whole
from tools.reliability import Row

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CHAIN = 5  # kills before it is left alone


def killed(command: Command, kills: int, rng: Random) -> Row:
    """So many kills, in chains of a few in one folder each."""
    with tempfile.TemporaryDirectory() as place:
        begin = time.monotonic()
        run(command, Path(place))
        seconds, wanted = time.monotonic() - begin, command.numbers(Path(place))
    came: Counter[str] = Counter()
    for first in range(0, kills, CHAIN):
        with tempfile.TemporaryDirectory() as place:
            for _ in range(min(CHAIN, kills - first)):
                came[kill_once(command, Path(place), rng.uniform(0.2, 1.0) * seconds, rng.choice(SIGNALS))] += 1
            run(command, Path(place))
            assert command.numbers(Path(place)) == wanted, f"{command.name}: other numbers"
    said = ", ".join(f"{how} {count}" for how, count in sorted(came.items()))
    return Row(f"`{command.name}` killed at a random moment, then run again", kills, f"{said}; the same numbers")


def run(command: Command, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    code, said = ended(started(command.words(folder)))
    clear(code, said)
    assert code in (0, 1), f"{command.name}: exit code {code}: {said[-300:]}"


def kill_once(command: Command, folder: Path, seconds: float, how: signal.Signals) -> str:
    """One kill; the word for what it was. What is left is whole, and nobody is left."""
    process = started(command.words(folder))
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        stop: Any = os.killpg if how == signal.SIGINT else os.kill
        stop(process.pid, how)
    code, said = ended(process)
    if command.name != "monitor":  # a script of the user's own, which says what Python says
        clear(code, said or "killed" * (how == signal.SIGKILL))
    nobody_left(folder)
    whole(folder)
    return "over before" if code in (0, 1) and how != signal.SIGINT else how.name
