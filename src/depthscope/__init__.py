"""depthscope shows where a Transformer stops gaining from depth, and why."""

from typing import TYPE_CHECKING, Any

from depthscope import errors, experiments, metrics, models, remedies, theory
from depthscope.ablations.ablate import ablate
from depthscope.ablations.record import Ablations
from depthscope.ablations.without import without_
from depthscope.circuits.bounds import bounds
from depthscope.circuits.bounds_record import Bounds
from depthscope.circuits.path_lengths import PathLengths
from depthscope.circuits.paths import paths
from depthscope.circuits.spectrum import spectrum
from depthscope.circuits.spectrum_record import Spectrum
from depthscope.experiments import reproduce
from depthscope.forecasts.advise import advise
from depthscope.forecasts.forecast import forecast
from depthscope.forecasts.record import Forecast
from depthscope.records import LATER, Record, load
from depthscope.remedies.fix import fix_, fixes
from depthscope.reports.show import page
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from depthscope.training.comparison import Comparison

__version__ = "0.1.0"


LATER |= {
    "depthscope.bench": "depthscope.benches.record",
    "depthscope.checkup": "depthscope.checkups.record",
    "depthscope.comparison": "depthscope.training.comparison",
    "depthscope.run": "depthscope.training.run",
}


def report(*records: Record, to: "str | Path" = "report.html") -> "Path":
    """Write records into one HTML page that needs nothing else: the curves of scans together, then each by itself."""
    return page(*records, to=to)


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
    "fixes",
    "without_",
    "ablate",
    "compare",
    "paths",
    "bounds",
    "spectrum",
    "reproduce",
    "report",
    "load",
    "Scan",
    "Forecast",
    "PathLengths",
    "Bounds",
    "Spectrum",
    "Ablations",
    "Comparison",
    "metrics",
    "theory",
    "models",
    "remedies",
    "experiments",
    "errors",
]
