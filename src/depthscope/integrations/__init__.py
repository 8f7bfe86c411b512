"""depthscope inside other tools. Each name is imported, with the package that it needs, when it is first used."""

from importlib import import_module
from typing import Any

PLACES = {  # name -> module that defines it
    "TokenSimilarity": "depthscope.integrations.token_metrics",
    "TokenDiversity": "depthscope.integrations.token_metrics",
    "TokenCosine": "depthscope.integrations.token_metrics",
    "RelativeResidual": "depthscope.integrations.token_metrics",
}
__all__ = list(PLACES)


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(PLACES)
