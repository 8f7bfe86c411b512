"""Which experiments there are: a file of this folder each, and those that other packages offer as plug-ins."""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from depthscope.errors import UnknownNameError, UsageError
from depthscope.plugins import entries, report
from depthscope.registry import unknown

PARTS = ("Config", "SMOKE", "run", "claims", "draw")  # the names that make a module an experiment
ROOT = Path(__file__).parent


def names() -> list[str]:
    """All experiments, as paper/item: those of depthscope, then those of plug-ins.

    Examples:
        >>> "yu2023/fig8" in ds.experiments.names()
        True
    """
    return [*own_names(), *_plugged()]


@cache
def own_names() -> list[str]:
    papers = [p.name for p in pkgutil.iter_modules([str(ROOT)]) if p.ispkg]
    return [
        f"{paper}/{item.name}"
        for paper in papers
        for item in pkgutil.iter_modules([str(ROOT / paper)])
        if not item.name.startswith("_")
    ]


def find(name: str) -> list[str]:
    """The experiments that a name stands for: one item, all of a paper, or all."""
    known = names()
    found = [k for k in known if name in ("all", k, k.partition("/")[0])]
    if not found:
        papers = {k.partition("/")[0] for k in known}
        raise UnknownNameError(unknown("experiment", name, [*known, *papers, "all"]))
    return found


def module_of(name: str) -> ModuleType:
    if name in _plugged():
        return _plugged()[name]
    return importlib.import_module(f"depthscope.experiments.{name.replace('/', '.')}")


@cache
def _plugged() -> dict[str, ModuleType]:
    """The experiments of other packages; what is none is told and left out."""
    found = {}
    for name, entry in entries("experiment").items():
        try:
            module = entry.load()
            missing = [part for part in PARTS if not hasattr(module, part)]
            if name.count("/") != 1 or name in own_names():
                raise UsageError("an experiment must be called paper/item, and not as one of depthscope's")
            if missing:
                raise UsageError(f"an experiment must have {', '.join(PARTS)}; missing: {', '.join(missing)}")
            found[name] = module
        except Exception as error:
            report(entry, error)
    return found


def shelf() -> Iterator[tuple[str, str]]:
    """Every experiment with the first line of its file."""
    for name in names():
        yield name, (module_of(name).__doc__ or "").strip().splitlines()[0]
