"""Imports point down, heavy packages stay outside, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

from loops import over

ROOT = Path(__file__).parents[1] / "src" / "depthscope"
BASE = "errors checks registry files records junctions"
MAY_IMPORT = {
    "metrics": BASE,
    "theory": BASE,
    "models": BASE,
    "experiments": (
        f"metrics theory models traces scans laws forecasts remedies ablations circuits training reports notation {BASE}"
    ),
    "traces": BASE,
    "scans": f"traces metrics {BASE}",
    "remedies": f"traces metrics circuits {BASE}",
    "ablations": f"traces scans remedies {BASE}",
    "circuits": f"traces metrics theory {BASE}",
    "laws": f"theory models traces {BASE}",
    "forecasts": f"laws theory models traces scans remedies {BASE}",
    "training": f"metrics theory models traces scans remedies {BASE}",
    "reports": f"scans forecasts training theory ablations circuits {BASE}",
    "cli": f"metrics models theory traces scans forecasts remedies ablations circuits reports experiments training {BASE}",
}


def imported(file: Path) -> set[str]:
    """The first names under depthscope that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "depthscope":
            names = [f"depthscope.{a.name}" for a in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("depthscope.")}
    return found


@over("file", sorted(ROOT.rglob("*/*.py")))
def test_imports_point_down(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    assert sorted(imported(file) - {folder, *MAY_IMPORT[folder].split()}) == []


EXPERIMENTS = sorted((ROOT / "experiments").glob("*/*.py"))
PAPERS = {file.parent.name for file in EXPERIMENTS}


@over("file", EXPERIMENTS)
def test_experiments_never_import_each_other(file: Path) -> None:
    modules = [n.module or "" for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
    inside = [m.removeprefix("depthscope.experiments.") for m in modules if m.startswith("depthscope.experiments.")]
    assert all("." not in name and name not in PAPERS for name in inside)


def test_no_file_is_a_crowded_room() -> None:
    assert not [f for f in ROOT.rglob("*.py") if len(f.read_text().splitlines()) > 300]


def test_import_is_light() -> None:
    heavy = ("transformers", "matplotlib", "pandas", "plotly", "rich", "typer", "scipy", "sklearn", "accelerate")
    code = f"import sys, depthscope; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
