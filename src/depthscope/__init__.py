"""depthscope shows where a Transformer stops gaining from depth, and why."""

from typing import TYPE_CHECKING

from depthscope import errors, experiments, metrics, models, remedies, theory
from depthscope.experiments import reproduce
from depthscope.forecasts.advise import advise
from depthscope.forecasts.forecast import forecast
from depthscope.forecasts.record import Forecast
from depthscope.remedies._fix import fix_
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"


def report(*scans: Scan, to: "str | Path" = "report.html") -> "Path":
    """Write scans into one HTML page that needs nothing else: their curves together, then each by itself."""
    from depthscope.reports.html import report as write  # imported when it is needed: import depthscope stays light

    return write(*scans, to=to)


__all__ = [
    "scan",
    "forecast",
    "advise",
    "fix_",
    "reproduce",
    "report",
    "Scan",
    "Forecast",
    "metrics",
    "theory",
    "models",
    "remedies",
    "experiments",
    "errors",
]
