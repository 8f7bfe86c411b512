"""Reproductions of a paper's claims: what was wanted, what was found, over how many trials."""

from collections.abc import Sequence
from typing import Any

from depthscope.reports.sheet import Grid, Line, Sheet


def sheets(result: Any) -> list[Sheet]:
    return [Sheet(result.name, [table([result]), Line(summary([result]), "bold")], None)]


def table(results: Sequence[Any]) -> Grid:
    """The claims of all results, those of one under its name."""
    cells: list[Any] = []
    for result in results:
        cells.append([(f"{result.name} ({result.seconds:.0f} s)", "bold"), "", "", "", ""])
        for claim in result.claims:
            colour = "green" if claim.holds else "red" if claim.expected else "yellow"
            said = [f"  {claim.says}", claim.wanted, f"{claim.value:.4g}", (claim.status, colour), str(claim.trials)]
            cells.append(said)
    return Grid(["claim", "wanted", "got", "", "trials"], cells, left=2, fold={"claim": 24})


def summary(results: Sequence[Any]) -> str:
    """How many claims hold, and of those that are known to differ how many do."""
    claims = [claim for result in results for claim in result.claims]
    expected, known = [c for c in claims if c.expected], [c for c in claims if not c.expected]
    said = f"{sum(c.holds for c in expected)} of {len(expected)} claims hold"
    if known:
        said += f"; of {len(known)} that are known to differ, {sum(not c.holds for c in known)} do"
    return f"{said}. {sum(result.seconds for result in results):.0f} s."
