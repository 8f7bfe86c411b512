"""Which metrics a scan measures: those that are asked for, and those that the verdict rests on."""

from collections.abc import Iterable
from typing import Any

from depthscope.errors import UsageError
from depthscope.registry import TABLES, lookup
from depthscope.scans.positions import metric_called
from depthscope.scans.record import JUDGED


def default_metrics() -> list[str]:
    """The names of the metrics that a scan measures unless it is told."""
    return [name for name, f in TABLES["metric"].items() if f.facts.default]


def chosen_metrics(names: Iterable[str] | None, *, attention: bool) -> list[Any]:
    """The metric functions to measure; an unknown name is an error with the nearest one."""
    if isinstance(names, str):
        names = [names]
    names = default_metrics() if names is None else list(names) if isinstance(names, Iterable) else [names]
    if odd := [name for name in names if not isinstance(name, str)]:
        raise UsageError(f"metrics must be names, as depthscope ls metrics shows them; got {odd[0]!r:.40}.")
    functions = [metric_called(name) for name in names]
    for function in functions:
        if "Y" in function.facts.takes and "P" in function.facts.takes:
            raise UsageError(
                f"{function.facts.name} needs the law of the weights, which no scan can see; "
                f"call ds.metrics.{function.facts.name}(X, Y, P, alpha=, sigma=) on a reference model."
            )
        if function.facts.kind == "step" and function.facts.formula is None:
            raise UsageError(
                f"{function.facts.name} compares the tokens of two states, and a scan keeps numbers, not states; call "
                f"ds.depth(model, inputs) for every block, or ds.metrics.{function.facts.name}(X, Y) for two states."
            )
    always = [lookup("metric", name) for name in ("t_sim", *JUDGED)]  # the verdict rests on them
    functions = list(dict.fromkeys([*always, *functions]))
    return [f for f in functions if attention or f.facts.kind != "attention"]


def check_sample(sample: int | None) -> None:
    """How many random channels stand for all: two at least, or their spread would tell nothing."""
    if sample is not None and (isinstance(sample, bool) or not isinstance(sample, int) or sample < 2):
        raise UsageError(
            f"sample must be a number of channels, 2 or more; got {sample!r}. Leave it out for all of them."
        )
