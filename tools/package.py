"""Build the wheel and the sdist, and show that they are right: python tools/package.py [FOLDER]

Tracked files alone are built, twice; both builds must be the same bytes. twine reads the metadata. Then the wheel is
installed in an empty environment and runs the README's example. What was built goes into FOLDER, dist/ without one.
"""

import filecmp
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(folder: str = "dist") -> None:
    os.environ.setdefault("SOURCE_DATE_EPOCH", _said("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    with tempfile.TemporaryDirectory() as place:
        first, second = (built(Path(place) / name) for name in ("first", "second"))
        for file in first:
            same = filecmp.cmp(file, next(one for one in second if one.name == file.name), shallow=False)
            words = "the same" if same else "NOT the same"
            print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB, {words} when built again")
            if not same:
                sys.exit(1)
        _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, first))
        wheel = next(file for file in first if file.suffix == ".whl")
        print(tried(wheel, Path(place) / "empty"))
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for file in first:
            shutil.copy2(file, target)


def built(place: Path) -> list[Path]:
    """Wheel and sdist of the tracked files, copied to a folder of their own."""
    sources, out = place / "sources", place / "out"
    for name in _said("git", "-C", str(ROOT), "ls-files").splitlines():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, sources / name)
        (sources / name).chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
    readme = sources / "README.md"
    readme.write_text(anywhere(readme.read_text("utf-8")), "utf-8")
    _run(sys.executable, "-m", "build", "--outdir", str(out), str(sources))
    for sdist in out.glob("*.tar.gz"):
        repacked(sdist)
    return sorted(out.iterdir())


def anywhere(readme: str) -> str:
    """The README with whole addresses for its links: a package index shows it, and has none of the files beside it."""
    home = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]
    there = r"(?=(?:docs/|[A-Z_]+\.(?:md|cff)\b))"
    readme = re.sub(rf"(!\[[^\]]*\]\(){there}", rf"\g<1>{home}/raw/main/", readme)
    return re.sub(rf"(\]\(|^\[[^\]]+\]: ){there}", rf"\g<1>{home}/blob/main/", readme, flags=re.M)


def repacked(sdist: Path) -> None:
    """The same files in order, with one date and no owner: setuptools writes both as they happen to be."""
    date = int(os.environ["SOURCE_DATE_EPOCH"])
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with open(sdist, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=date) as zipped:
        zipped.write(packed.getvalue())


def tried(wheel: Path, place: Path) -> str:
    """What the README's example prints where nothing but the wheel and its dependencies is installed."""
    venv.create(place, with_pip=True)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    _run(str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    code, shown = re.search(
        r"```python\n(.*?)```\n+```\w*\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S
    ).groups()
    version = _said(str(python), "-m", "depthscope", "--version", cwd=place)
    said = _said(str(python), "-c", code, cwd=place)
    if said.split() != shown.split():  # the README breaks long lines
        sys.exit(f"{wheel.name}: the README's example must print what the README shows; it printed\n{said}")
    return f"{version}, installed from the wheel: the README's example prints what the README shows"


def _said(*command: str, cwd: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd, env=env).stdout.strip()


def _run(*command: str) -> None:
    _said(*command)


if __name__ == "__main__":
    main(*sys.argv[1:])
