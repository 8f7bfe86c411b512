"""Remedies: one remedy, one file. fix_ puts one into a model at a named site."""

from typing import Any

from depthscope.registry import TABLES, import_folder

import_folder(__name__, __path__)


def __getattr__(name: str) -> Any:
    if name in TABLES["remedy"]:
        return TABLES["remedy"][name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(TABLES["remedy"])
