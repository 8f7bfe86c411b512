"""A few cells, spread over the grid, at an earlier commit: python benchmarks/before.py COMMIT > writes before.json

The commit is checked out into a folder of its own, and the package `benches` of today measures it. Without a commit the
same cells are measured as they are now, into out/spread.json. Processor time of one thread, so that other work on the
machine disturbs it little.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEFORE, NOW = ROOT / "benchmarks" / "before.json", ROOT / "out" / "spread.json"
BENCHES = Path("src", "depthscope", "benches")
SIZES = [  # kind, d, n, batch, depth
    ("encoder", 256, 64, 1, 12),
    ("decoder", 256, 64, 8, 12),
    ("encoder", 256, 64, 8, 48),
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


def measure(to: Path, note: str) -> None:
    """The cells in this process, whatever depthscope it imports."""
    from depthscope.benches.cell import Cell, usual_heads
    from depthscope.benches.run import bench

    cells = [Cell(*sizes, usual_heads(sizes[1])) for sizes in SIZES]
    say = lambda words: print(words, file=sys.stderr, flush=True)  # noqa: E731
    found = bench(cells, threads=1, repeats=2, clock="cpu", memory=False, on_cell=say)
    to.parent.mkdir(exist_ok=True)
    replace(found, notes=[*found.notes, note]).save(to)


def at_commit(commit: str) -> None:
    """The same in a process that imports an earlier depthscope, with the benches of today in it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", tree, commit], check=True)
        try:
            shutil.copytree(ROOT / BENCHES, tree / BENCHES)
            words = [sys.executable, __file__, "--measure", BEFORE, f"commit {commit}"]
            subprocess.run(words, check=True, env=os.environ | {"PYTHONPATH": str(tree / "src")})
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", tree], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:]:
        at_commit(sys.argv[1])
    else:
        measure(NOW, "the present tree")
