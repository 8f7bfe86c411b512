"""depthscope inside the tools that people train and test with; a tool is imported when its part is asked for."""

from importlib import import_module
from typing import Any

WHERE = {  # name -> module of this package
    "TokenSimilarity": "token_metrics",
    "TokenDiversity": "token_metrics",
    "TokenCosine": "token_metrics",
    "RelativeResidual": "token_metrics",
}
__all__ = list(WHERE)


def __getattr__(name: str) -> Any:
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(WHERE)
