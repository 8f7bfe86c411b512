"""Plug-ins: what other packages put on the shelves. They name a module under an entry point, its import registers.

    [project.entry-points."depthscope.metrics"]
    peaks = "their_package.peaks"

They are loaded when a shelf is first looked at. One that fails is told by a warning and in FAILED, and the rest works.
"""

import sys
import warnings
from collections.abc import MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any

from depthscope.errors import DepthscopeError, PluginWarning, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS = {  # kind of thing -> group of entry points
    "metric": "depthscope.metrics",
    "remedy": "depthscope.remedies",
    "wiring": "depthscope.wirings",
    "task": "depthscope.tasks",
    "preset": "depthscope.presets",
    "experiment": "depthscope.experiments",
}
FAILED: dict[str, str] = {}  # plug-in -> why it could not be loaded


@cache
def entries(kind: str) -> "dict[str, EntryPoint]":
    """The plug-ins of a kind by name; none for a kind that has no group. Nothing is imported."""
    from importlib.metadata import entry_points

    if kind not in GROUPS:
        return {}
    return {one.name: one for one in reversed(list(entry_points(group=GROUPS[kind])))}  # the first on the path wins


def fill(kind: str, shelf: MutableMapping[str, Any]) -> None:
    """Load all plug-ins of a kind; each must put something new on the shelf, and leave what is there."""
    for entry in entries(kind).values():
        before, met = dict(shelf), entry.module in sys.modules  # who was imported earlier has registered by then
        try:
            entry.load()
            replaced = [name for name, thing in before.items() if shelf.get(name) is not thing]
            if replaced:
                raise UsageError(f"a {kind} called {replaced[0]!r} is there already; give it another name")
            if len(shelf) == len(before) and not met:
                raise UsageError(f"its import must register a {kind}, and did not")
        except Exception as error:
            for name in [*shelf]:
                if name not in before:
                    del shelf[name]
            shelf.update(before)
            report(entry, error)


def report(entry: "EntryPoint", error: Exception) -> None:
    """Say once which plug-in of which package failed, and why."""
    package = entry.dist.name if entry.dist else "an unknown package"
    words = str(error) if isinstance(error, DepthscopeError) else f"{type(error).__name__}: {error}"
    said = f"the plug-in {entry.name!r} of {package} ({entry.group}) is left out; {words.rstrip('.')}."
    FAILED[f"{package}: {entry.name}"] = said
    warnings.warn(PluginWarning(said), stacklevel=2)
