"""Tasks: one task, one file, found by name. Each has three splits, and nothing is chosen on test data."""

import inspect
from typing import Any

from depthscope.errors import UnknownNameError
from depthscope.registry import TABLES, import_folder, lookup, unknown
from depthscope.training.data.images import ImageTask, Split, pixels
from depthscope.training.data.task import Task

__all__ = ["task", "names", "Task", "ImageTask", "Split", "pixels"]

import_folder(__name__, __path__)


def task(name: str, **options: Any) -> Task:
    """The task called `name`: task("digits"), task("cifar10", data="cifar10.npz"), task("images", data="folder")."""
    load = lookup("task", name)
    known = inspect.signature(load).parameters
    for option in options:
        if option not in known:
            raise UnknownNameError(f"{name}: " + unknown("option", option, known))
    return load(**options)


def names() -> list[str]:
    """All tasks by name."""
    return sorted(TABLES["task"])
