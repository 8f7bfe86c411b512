"""Modules of depthscope compiled from a changed tree, in memory: the files on disk stay as they are."""

import ast
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "depthscope"
AREAS = ("metrics", "theory", "traces", "scans", "remedies", "forecasts", "training")
Change = Callable[[str, ast.Module], ast.Module]  # the path in the package and the tree -> the tree that is compiled


def files() -> list[str]:
    """The modules that are broken, as paths in the package."""
    return sorted(str(path.relative_to(SOURCE)) for area in AREAS for path in (SOURCE / area).rglob("*.py"))


def tree(file: str) -> ast.Module:
    return ast.parse((SOURCE / file).read_text())


def bodies(parent: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements of a module that run together or not at all."""
    for node in ast.walk(parent):
        if isinstance(node, ast.ClassDef | ast.With):
            continue  # they run with what is around them
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


class Changed(importlib.machinery.SourceFileLoader):
    """Loads one module with its tree changed; `names` are put into the module before it runs."""

    def __init__(self, name: str, path: str, change: Change, names: dict[str, object]) -> None:
        super().__init__(name, path)
        self.change, self.names = change, names

    def get_code(self, fullname: str) -> CodeType:
        file = str(Path(self.path).relative_to(SOURCE))
        changed = self.change(file, ast.parse(Path(self.path).read_text()))
        return compile(ast.fix_missing_locations(changed), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self.names)
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, only: set[str], change: Change, names: dict[str, object]) -> None:
        self.only, self.change, self.names = only, change, names
        self.found: set[str] = set()  # what was imported changed

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if not fullname.startswith("depthscope."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None or not Path(spec.origin).is_relative_to(SOURCE):
            return None
        file = str(Path(spec.origin).relative_to(SOURCE))
        if file not in self.only:
            return None
        self.found.add(file)
        spec.loader = Changed(fullname, spec.origin, self.change, self.names)
        return spec


def change(only: set[str], how: Change, **names: object) -> Finder:
    """From here on these modules are imported with their trees changed."""
    found = Path(str(importlib.import_module("depthscope").__file__)).parent
    if found != SOURCE:  # then nothing would be changed, and every mutant would live
        raise RuntimeError(f"mutants: depthscope must be that of {SOURCE}; it is that of {found}. Set PYTHONPATH.")
    early = {file for file in only if "depthscope." + file.removesuffix(".py").replace("/", ".") in sys.modules}
    if early:
        raise RuntimeError(f"mutants: {sorted(early)} must be imported after they are changed; they were before.")
    finder = Finder(only, how, names)
    sys.meta_path.insert(0, finder)
    return finder
