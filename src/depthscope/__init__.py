"""depthscope shows where a Transformer stops gaining from depth, and why.

Every name is imported when it is first used: importing depthscope costs nothing, and nobody waits for torch in vain.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from depthscope import errors, experiments, integrations, metrics, models, remedies, theory
    from depthscope.ablations.ablate import ablate
    from depthscope.ablations.record import Ablations
    from depthscope.ablations.without import without_
    from depthscope.circuits.bounds import bounds
    from depthscope.circuits.bounds_record import Bounds
    from depthscope.circuits.path_lengths import PathLengths
    from depthscope.circuits.paths import paths
    from depthscope.circuits.spectrum import spectrum
    from depthscope.circuits.spectrum_record import Spectrum
    from depthscope.depths.depth import depth
    from depthscope.depths.drop import drop_
    from depthscope.depths.record import EffectiveDepth
    from depthscope.experiments import reproduce
    from depthscope.forecasts.advice import Advice
    from depthscope.forecasts.advise import advise
    from depthscope.forecasts.forecast import forecast
    from depthscope.forecasts.record import Forecast
    from depthscope.gates.gate import gate
    from depthscope.gates.record import Gate
    from depthscope.monitors.monitor import Monitor
    from depthscope.records import Record, load
    from depthscope.remedies.fix import fix_, fixes
    from depthscope.scans.record import Scan
    from depthscope.scans.scan import scan
    from depthscope.training.comparison import Comparison

__version__ = "0.1.0"

PLACES = {  # public name -> module that defines it; the imports above say the same to type checkers
    "scan": "depthscope.scans.scan",
    "forecast": "depthscope.forecasts.forecast",
    "advise": "depthscope.forecasts.advise",
    "fix_": "depthscope.remedies.fix",
    "fixes": "depthscope.remedies.fix",
    "without_": "depthscope.ablations.without",
    "ablate": "depthscope.ablations.ablate",
    "paths": "depthscope.circuits.paths",
    "bounds": "depthscope.circuits.bounds",
    "spectrum": "depthscope.circuits.spectrum",
    "depth": "depthscope.depths.depth",
    "drop_": "depthscope.depths.drop",
    "gate": "depthscope.gates.gate",
    "reproduce": "depthscope.experiments",
    "load": "depthscope.records",
    "Monitor": "depthscope.monitors.monitor",
    "Scan": "depthscope.scans.record",
    "Forecast": "depthscope.forecasts.record",
    "Advice": "depthscope.forecasts.advice",
    "PathLengths": "depthscope.circuits.path_lengths",
    "Bounds": "depthscope.circuits.bounds_record",
    "Spectrum": "depthscope.circuits.spectrum_record",
    "Ablations": "depthscope.ablations.record",
    "EffectiveDepth": "depthscope.depths.record",
    "Comparison": "depthscope.training.comparison",
    "Gate": "depthscope.gates.record",
}
PACKAGES = ("metrics", "theory", "models", "remedies", "experiments", "integrations", "errors")


def report(*records: "Record | Mapping[str, Record]", to: "str | Path" = "report.html") -> "Path":
    """Write records into one HTML page that needs nothing else: what was found, where, why, what to do, the evidence.

    Scans are told together; ds.report({"before": a, "after": b}) gives them labels. Forecasts are drawn beside them.

    Examples:
        >>> scan = ds.scan(ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8))
        >>> ds.report({"before": scan}, to="report.html").name
        'report.html'
    """
    from depthscope.reports.pages.page import page

    return page(*records, to=to)


def compare(task: "str | Callable[[], Any]" = "digits", *more: Any, **choices: Any) -> "Comparison":
    """Train every arm with every seed under one budget: compare("digits", "post_norm,de_escalate", depth=24).

    Or a model of your own: compare(model_fn, batch_fn, loss_fn, arms="plain,de_escalate"), all functions of a module.
    See depthscope.training.compare for all choices, depthscope.training.tasks.own for the functions.
    """
    from depthscope.training.compare import compare as run

    if callable(task):
        from depthscope.training.tasks.own import named

        return run("own", **named(task, *more), **choices)
    return run(task, *more, **choices)


def __getattr__(name: str) -> Any:
    if name in PLACES:
        found = getattr(import_module(PLACES[name]), name)
    elif name in PACKAGES:
        found = import_module(f"depthscope.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
    "depth",
    "drop_",
    "gate",
    "reproduce",
    "report",
    "load",
    "Monitor",
    "Scan",
    "Forecast",
    "Advice",
    "PathLengths",
    "Bounds",
    "Spectrum",
    "Ablations",
    "EffectiveDepth",
    "Comparison",
    "Gate",
    "metrics",
    "theory",
    "models",
    "remedies",
    "experiments",
    "integrations",
    "errors",
]
