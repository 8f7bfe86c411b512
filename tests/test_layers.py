"""Imports point down, heavy packages stay outside, files stay small."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from loops import over

ROOT = Path(__file__).parents[1] / "src" / "depthscope"
REPOSITORY = ROOT.parents[1]
BASE = "errors extras checks later plugins registry files records record_schema junctions"
BELOW = "metrics theory models traces interventions circuits remedies scans ablations depths laws"
MAY_IMPORT = {
    "metrics": BASE,
    "theory": BASE,
    "models": BASE,
    "traces": BASE,
    "interventions": f"traces {BASE}",
    "circuits": f"traces interventions metrics theory {BASE}",
    "remedies": f"traces interventions circuits metrics {BASE}",
    "scans": f"traces metrics {BASE}",
    "ablations": f"traces interventions scans {BASE}",
    "depths": f"traces circuits metrics {BASE}",
    "laws": f"theory models traces {BASE}",
    "forecasts": f"laws theory models traces scans remedies {BASE}",
    "monitors": f"traces scans {BASE}",
    "training": f"{BELOW} forecasts monitors {BASE}",
    "checkups": f"{BELOW} forecasts {BASE}",
    "benches": f"models scans {BASE}",
    "gates": f"traces scans forecasts {BASE}",
    "reports": f"{BELOW} forecasts monitors training checkups benches gates notation {BASE}",
    "experiments": f"{BELOW} forecasts training reports notation {BASE}",
    "integrations": f"metrics scans monitors gates {BASE}",
    "cli": f"{BELOW} forecasts monitors training checkups benches gates reports experiments notation {BASE}",
}


def only_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@cache
def imports(file: Path) -> set[str]:
    """All modules and names under depthscope that a file imports when it runs, also inside functions, dotted."""
    found, nodes = set(), [ast.parse(file.read_text())]
    while nodes:
        node = nodes.pop()
        nodes += [] if only_for_types(node) else ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import hides which package it is of"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("depthscope.") for name in found if name.startswith("depthscope.")}


def imported(file: Path) -> set[str]:
    """The packages and modules directly under depthscope that a file imports."""
    return {name.split(".")[0] for name in imports(file)}


@over("file", sorted(ROOT.rglob("*/*.py")))
def test_imports_point_down(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    assert sorted(imported(file) - {folder, *MAY_IMPORT[folder].split()}) == []


def test_no_two_packages_need_each_other() -> None:
    """Packages can be put in an order in which each imports earlier ones alone, with imports inside functions counted."""
    needs: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        room = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__"):  # the public names, on top of all
            needs.setdefault(room, set()).update(imported(file) - {room})
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        raise AssertionError(f"a cycle of imports: {' <- '.join(error.args[1])}") from None


def private(name: str) -> bool:
    """Whether a dotted name leads through a module that begins with an underscore."""
    parts = name.split(".")
    return any(
        part.startswith("_") and not part.startswith("__") and is_module(ROOT.joinpath(*parts[: i + 1]))
        for i, part in enumerate(parts)
    )


def is_module(path: Path) -> bool:
    return path.with_suffix(".py").exists() or path.is_dir()


FILES = sorted(
    f for place in ("src", "tests", "benchmarks", "tools", "docs") for f in (REPOSITORY / place).rglob("*.py")
)


@over("file", FILES)
def test_what_begins_with_an_underscore_is_of_its_package_alone(file: Path) -> None:
    own = file.relative_to(ROOT).parts[0] if file.is_relative_to(ROOT) else ""
    assert [name for name in sorted(imports(file)) if private(name) and name.split(".")[0] != own] == []


EXPERIMENTS = sorted((ROOT / "experiments").glob("*/*.py"))
PAPERS = {file.parent.name for file in EXPERIMENTS}


@over("file", EXPERIMENTS)
def test_experiments_never_import_each_other(file: Path) -> None:
    modules = [n.module or "" for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom)]
    inside = [m.removeprefix("depthscope.experiments.") for m in modules if m.startswith("depthscope.experiments.")]
    assert all("." not in name and name not in PAPERS for name in inside)


def test_no_file_is_a_crowded_room() -> None:
    assert not [f for f in ROOT.rglob("*.py") if len(f.read_text().splitlines()) > 300]


HEAVY = (
    "transformers",
    "matplotlib",
    "pandas",
    "plotly",
    "rich",
    "typer",
    "scipy",
    "sklearn",
    "accelerate",
    "lightning",
)
LIGHT = ("import depthscope.integrations.pytest_plugin", "from depthscope.cli.main import app")


@over("code", ["import depthscope", *LIGHT])
def test_import_is_light(code: str) -> None:
    """Without torch; a public name brings torch, and nothing else that is heavy."""
    found = loaded(f"import sys; {code}")
    assert not {"torch", "numpy", *HEAVY} - {"typer"} & found
    assert "typer" not in found or "cli" in code


def test_public_names_are_light() -> None:
    found = loaded("import sys, depthscope as ds; [getattr(ds, name) for name in ds.__all__]")
    assert "torch" in found and not {*HEAVY} & found


def loaded(code: str) -> set[str]:
    """The packages that are there after the code has run in a process of its own."""
    return set(subprocess.check_output([sys.executable, "-c", f"{code}; print(*sys.modules)"], text=True).split())
