"""Pure measures of one state X, one step X -> Y, or one attention matrix P."""

from typing import Any

from depthscope.metrics.prefix import prefix_diversity  # noqa: F401 (a curve and not a number, so in no table)
from depthscope.registry import TABLES, import_folder

import_folder(__name__, __path__)  # runs the decorators; there is no list to keep


def __getattr__(name: str) -> Any:  # so that type checkers accept ds.metrics.t_sim
    if name in TABLES["metric"]:
        return TABLES["metric"][name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(TABLES["metric"])
