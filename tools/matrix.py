"""The matrix run: environments of several Pythons and torches, each with the fast tests; says what is missing.

    python tools/matrix.py [--only 'python3.13*'] [--tests tests/metrics tests/scans] [--minutes 40] [--write]

Every environment is new, in out/matrix, and takes some gigabytes of disk while it is tested.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.reliability import Row, write  # noqa: E402, the line above makes it known

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.6.0", "2.13.0")  # the oldest that pyproject.toml takes, and the one of constraints.txt
EXTRAS = "hf,plot,report,train,integrations,dev"


@dataclass(frozen=True)
class Cell:
    python: str
    torch: str

    @property
    def name(self) -> str:
        return f"python{self.python}-torch{self.torch}"


def interpreter(version: str) -> str | None:
    """A Python of this version, on the path or among those of pyenv."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return shutil.which(f"python{version}") or (str(own[-1]) if own else None)


def tried(cell: Cell, tests: list[str], minutes: float) -> Row:
    """What became of one environment."""
    python, place = interpreter(cell.python), ROOT / "out" / "matrix" / cell.name
    if python is None:
        return Row(cell.name, 0, f"not tried: there is no Python {cell.python} here", "nothing known")
    shutil.rmtree(place, ignore_errors=True)
    try:
        _run([python, "-m", "venv", str(place)], 5)
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        code, said = _run([*pip, f"torch=={cell.torch}"], minutes)
        if code:
            return Row(cell.name, 0, f"not tried: no wheel of torch {cell.torch} here ({_last(said)})", "nothing known")
        code, said = _run([*pip, f"torch=={cell.torch}", "--editable", f"{ROOT}[{EXTRAS}]"], minutes)
        if code:
            return Row(cell.name, 0, f"not tried: the extras do not install ({_last(said)})", "nothing known")
        words = ["-m", "pytest", "-q", "-n", "1", "-m", "not long and not pages", "-p", "no:cacheprovider", *tests]
        code, said = _run([str(place / "bin" / "python"), *words], minutes)
    except subprocess.TimeoutExpired:
        return Row(cell.name, 0, f"not done within {minutes:g} minutes", "nothing known")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    passed, failed = (int(n[1]) if (n := re.search(rf"(\d+) {word}", said)) else 0 for word in ("passed", "failed"))
    for line in re.findall(r"^(?:FAILED|ERROR) .*", said, re.M):
        print(f"  {line[:200]}", flush=True)
    return Row(cell.name, passed + failed, f"{passed} passed", "nothing" if code == 0 else f"{failed} failed")


def _run(words: list[str], minutes: float) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        timeout=60 * minutes,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip() and "notice" not in line]
    return re.sub(r"\S*://\S*|/\S+", "...", lines[-1])[:120] if lines else "no word"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default="*", help="names of environments, as 'python3.13*'")
    arguments.add_argument("--tests", nargs="*", default=["tests"], help="these alone")
    arguments.add_argument("--minutes", type=float, default=40, help="for each step of an environment")
    arguments.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    chosen = arguments.parse_args()
    rows = []
    for cell in (Cell(python, torch) for torch in reversed(TORCHES) for python in PYTHONS):
        if fnmatch(cell.name, chosen.only):
            rows.append(tried(cell, chosen.tests, chosen.minutes))
            print(f"{cell.name}: {rows[-1].came}; lost: {rows[-1].lost}", flush=True)
    if chosen.write:
        write("matrix", "make matrix", rows)
    return int(any("failed" in row.lost for row in rows))


if __name__ == "__main__":
    sys.exit(main())
