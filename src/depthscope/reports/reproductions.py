"""Reproductions of a paper's claims: what was wanted, what was found, over how many trials."""

import math
from collections.abc import Sequence
from typing import Any

from depthscope.reports.sheet import Grid, Line, Sheet


def sheets(result: Any) -> list[Sheet]:
    return [Sheet(result.name, [table([result]), Line(summary([result]), "bold")], None)]


def table(results: Sequence[Any]) -> Grid:
    """The claims of all results, those of one under its name."""
    cells: list[Any] = []
    for result in results:
        cells.append([(f"{result.name} ({result.seconds:.0f} s)", "bold"), "", "", "", "", ""])
        for claim in result.claims:
            null = "" if math.isnan(claim.null) else f"{claim.null:.2g}"
            status = (claim.status, colour(claim))
            cells.append([f"  {claim.says}", claim.wanted, null, f"{claim.value:.4g}", status, str(claim.trials)])
    return Grid(["claim", "wanted", "null", "got", "", "trials"], cells, left=2, fold={"claim": 24})


def colour(claim: Any) -> str:
    if claim.reported:
        return "dim"
    return "green" if claim.holds else "red" if claim.expected else "yellow"


def summary(results: Sequence[Any]) -> str:
    """How many claims hold, of those that are known to differ how many do, and how many numbers are only reported."""
    claims = [claim for result in results for claim in result.claims]
    counted, known = [c for c in claims if c.counted], [c for c in claims if not c.expected]
    said = f"{sum(c.holds for c in counted)} of {len(counted)} claims hold"
    if known:
        said += f"; of {len(known)} that are known to differ, {sum(not c.holds for c in known)} do"
    if more := sum(c.reported for c in claims):
        said += f"; reported and not counted: {more}"
    return f"{said}. {sum(result.seconds for result in results):.0f} s."
