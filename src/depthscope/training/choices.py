"""Choices by name, each to whom it belongs: the model, the training, the task."""

import inspect
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from depthscope.registry import lookup
from depthscope.training.build import Build
from depthscope.training.recipe import Recipe


@dataclass(frozen=True)
class Sorted:
    """Choices of Build, of Recipe and of the task; rest: those that none of them knows; known: all that one does."""

    build: dict[str, Any]
    recipe: dict[str, Any]
    options: dict[str, Any]
    rest: dict[str, Any]
    known: set[str]


def sort_choices(task: str, choices: dict[str, Any], *, taken: Collection[str] = ()) -> Sorted:
    """Sort choices; taken: names of Build and Recipe that are not to be chosen here."""
    of_build = {f.name for f in fields(Build)} - {*taken}
    of_recipe = {f.name for f in fields(Recipe)} - {*taken}
    of_task = {*inspect.signature(lookup("task", task)).parameters}
    known = of_build | of_recipe | of_task

    def among(names: Collection[str]) -> dict[str, Any]:
        return {name: value for name, value in choices.items() if name in names}

    return Sorted(among(of_build), among(of_recipe), among(of_task), among(choices.keys() - known), known)
