"""The matrix run: environments of several Pythons, torches and transformers, each with fast tests.

    python tools/matrix.py [--only 'python3.13*'] [--tests tests] [--download] [--minutes 40] [--write]

It says what is missing. Every environment is new, in out/matrix, and takes some gigabytes of disk while it is tested.
torch is taken from the folders of wheels that pip knows (PIP_FIND_LINKS); with --download from the index too, where it
may bring several gigabytes of CUDA. Where there is none, the sources are compiled at least.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.reliability import Row, write  # noqa: E402, the line above makes it known

PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.13.0", "2.6.0", "2.15.0")  # that of constraints.txt, the oldest of pyproject.toml, the newest there is
PINNED, OLDEST = "5.22.2", "5.0.0"  # transformers of constraints.txt and of pyproject.toml
FOLDERS = ("src", "tests", "tools")
EXTRAS = "hf,plot,report,train,integrations,dev"
TESTS = ["tests/metrics", "tests/theory", "tests/test_records.py", "tests/integrations/test_hugging_face.py"]


@dataclass(frozen=True)
class Cell:
    python: str
    torch: str
    transformers: str = PINNED

    @property
    def name(self) -> str:
        return f"python{self.python}-torch{self.torch}-transformers{self.transformers}"


CELLS = [
    *(Cell(python, torch) for torch in TORCHES for python in PYTHONS),
    Cell("3.11", "2.13.0", OLDEST),
]


def interpreter(version: str) -> str | None:
    """A Python of this version, on the path or among those of pyenv."""
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(own[-1]) if own else shutil.which(f"python{version}")  # a shim of pyenv on the path may lead nowhere


def tried(cell: Cell, tests: list[str], minutes: float, download: bool) -> Row:
    """What became of one environment."""
    python, place = interpreter(cell.python), ROOT / "out" / "matrix" / cell.name
    if python is None:
        return Row(cell.name, 0, f"not tried: there is no Python {cell.python} here", "nothing known")
    shutil.rmtree(place, ignore_errors=True)
    try:
        wanted, pip = f"torch=={cell.torch}", ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        asked = [python, *pip, "--dry-run", "--ignore-installed", "--no-index", "--no-deps", wanted]
        if not download and _run(asked, minutes)[0]:
            return _compiled(cell, python)
        _run([python, "-m", "venv", str(place)], minutes)
        own = str(place / "bin" / "python")
        pip = [own, *pip]
        code, said = _run([*pip, wanted], minutes)
        if code:
            return Row(cell.name, 0, f"not tried: no wheel of torch {cell.torch} here ({_last(said)})", "nothing known")
        wanted = [wanted, f"transformers=={cell.transformers}", "--editable", f"{ROOT}[{EXTRAS}]"]
        code, said = _run([*pip, *wanted], minutes)
        if code:
            return Row(cell.name, 0, f"not tried: the extras do not install ({_last(said)})", "nothing known")
        words = ["-m", "pytest", "-q", "-m", "not long and not pages", "-p", "no:cacheprovider", *tests]
        code, said = _run([own, *words], minutes)
    except subprocess.TimeoutExpired:
        return Row(cell.name, 0, f"not done within {minutes:g} minutes", "nothing known")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    passed, failed = (int(n[1]) if (n := re.search(rf"(\d+) {word}", said)) else 0 for word in ("passed", "failed"))
    for line in re.findall(r"^(?:FAILED|ERROR) .*", said, re.M):
        print(f"  {line[:200]}", flush=True)
    return Row(cell.name, passed + failed, f"{passed} tests passed", "nothing" if code == 0 else f"{failed} failed")


def _compiled(cell: Cell, python: str) -> Row:
    """All that can be known without torch: whether this Python reads the sources, and warns of nothing in them."""
    takes = _compiles(python)
    came = "its compiler takes all files without a warning" if takes else "its compiler does not take all files"
    return Row(cell.name, 0, f"no torch {cell.torch} for it at hand; {came}", "no test was run")


@cache
def _compiles(python: str) -> bool:
    with tempfile.TemporaryDirectory() as place:
        words = ["-W", "error", "-X", f"pycache_prefix={place}", "-m", "compileall", "-q", "-f", *FOLDERS]
        code, said = _run([python, *words], 20)
    for line in said.splitlines()[:5]:
        print(f"  {line[:200]}", flush=True)
    return code == 0


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
    arguments.add_argument("--tests", nargs="*", default=TESTS, help="these instead of a small selection")
    arguments.add_argument("--download", action="store_true", help="torch from the index too: several gigabytes")
    arguments.add_argument("--minutes", type=float, default=40, help="for each step of an environment")
    arguments.add_argument("--write", action="store_true", help="write the table of docs/reliability.md")
    chosen = arguments.parse_args()
    rows = []
    for cell in CELLS:
        if fnmatch(cell.name, chosen.only):
            rows.append(tried(cell, chosen.tests, chosen.minutes, chosen.download))
            print(f"{cell.name}: {rows[-1].came}; lost: {rows[-1].lost}", flush=True)
    if chosen.write:
        write("matrix", "make matrix", rows)
    return int(any("failed" in row.lost or "does not" in row.came for row in rows))


if __name__ == "__main__":
    sys.exit(main())
