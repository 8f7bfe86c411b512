"""depthscope shows where a Transformer stops gaining from depth, and why."""

from typing import TYPE_CHECKING, Any

from depthscope import errors, experiments, metrics, models, remedies, theory
from depthscope.experiments import reproduce
from depthscope.forecasts.advise import advise
from depthscope.forecasts.forecast import forecast
from depthscope.forecasts.record import Forecast
from depthscope.remedies._fix import fix_
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depthscope.training.comparison import Comparison

__version__ = "0.1.0"


def report(*scans: Scan, to: "str | Path" = "report.html") -> "Path":
    """Write scans into one HTML page that needs nothing else: their curves together, then each by itself."""
    from depthscope.reports.html import report as write  # imported when it is needed: import depthscope stays light

    return write(*scans, to=to)


def compare(
    task: str = "digits", arms: "str | Sequence[str]" = "post_norm,pre_norm,de_escalate", **choices: Any
) -> "Comparison":
    """Train every arm with every seed under one budget; see depthscope.training.compare for all choices."""
    from depthscope.training.compare import compare as run

    return run(task, arms, **choices)


def __getattr__(name: str) -> Any:
    if name == "Comparison":
        from depthscope.training.comparison import Comparison

        return Comparison
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "scan",
    "forecast",
    "advise",
    "fix_",
    "compare",
    "reproduce",
    "report",
    "Scan",
    "Forecast",
    "Comparison",
    "metrics",
    "theory",
    "models",
    "remedies",
    "experiments",
    "errors",
]
