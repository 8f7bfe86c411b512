"""A few cells, spread over the grid, at an earlier commit and now: python benchmarks/before.py [COMMIT]

The commit is checked out into a folder of its own, and the package `benches` of today measures it. Both run at the same
time, each with one thread, and processor time counts: whatever else the machine does disturbs both alike.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
BEFORE, NOW = ROOT / "out" / "before.json", ROOT / "out" / "now.json"
BENCHES = Path("src", "depthscope", "benches")
START = "c3d0739"  # before scans were made fast
SIZES = [  # kind, d, n, batch, depth
    ("encoder", 256, 64, 1, 12),
    ("encoder", 256, 64, 8, 48),
    ("decoder", 256, 64, 8, 12),
    ("decoder", 256, 128, 4, 12),
    ("encoder", 256, 512, 1, 48),
    ("encoder", 256, 512, 4, 12),
    ("decoder", 256, 2048, 1, 12),
    ("decoder", 768, 64, 1, 12),
    ("encoder", 768, 128, 4, 12),
    ("decoder", 768, 512, 1, 12),
    ("encoder", 1024, 64, 1, 48),
    ("decoder", 1024, 128, 1, 12),
]


def completed(errors: ModuleType) -> None:
    """Give an earlier depthscope.errors what the package `benches` of today takes from it."""
    if not hasattr(errors, "first_line"):
        errors.first_line = lambda error: str(error).partition("\n")[0]  # type: ignore[attr-defined]


def measure(to: Path, note: str) -> None:
    """The cells in this process, whatever depthscope it imports."""
    import depthscope.errors

    completed(depthscope.errors)
    from depthscope.benches.cell import Cell, usual_heads
    from depthscope.benches.run import bench

    cells = [Cell(*sizes, usual_heads(sizes[1])) for sizes in SIZES]
    say = lambda words: print(f"{note}: {words}", file=sys.stderr, flush=True)  # noqa: E731
    found = bench(cells, threads=1, repeats=2, clock="cpu", memory=False, on_cell=say)
    replace(found, notes=[*found.notes, note]).save(to)


def side_by_side(commit: str) -> None:
    """Both trees at once, each in a process of its own that imports its own depthscope."""
    BEFORE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit], check=True)
        try:
            shutil.copytree(ROOT / BENCHES, tree / BENCHES, dirs_exist_ok=True)
            runs = [started(tree, BEFORE, f"commit {commit}"), started(ROOT, NOW, "now")]
            failed = [run.args for run in runs if run.wait()]
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)
    if failed:
        raise SystemExit(f"before.py: both trees must be measured; got an error from {failed[0]}")


def started(tree: Path, to: Path, note: str) -> subprocess.Popen:
    words = [sys.executable, __file__, "--measure", str(to), note]
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), sys.argv[3])
    else:
        side_by_side(*sys.argv[1:] or [START])
