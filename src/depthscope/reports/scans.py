"""A scan: what was scanned, a chart of similarity over depth, the verdict, a table; with `before` both side by side."""

from collections.abc import Sequence
from typing import Any

import torch

from depthscope.reports.rows import LEGEND, REST, by_position, header, hidden, massive_tokens, side_by_side, table
from depthscope.reports.scan_plots import draw_scans
from depthscope.reports.sheet import Bars, Curves, Grid, Line, Part, Sheet, notes
from depthscope.scans.record import Scan

SIZE = (11, 7)
STYLE = {"diverse": "green", "escalating": "yellow"}


def sheets(scan: Scan) -> list[Sheet]:
    return [sheet(scan)] if scan.before is None else [sheet(scan.before), sheet(scan), comparison(scan.before, scan)]


def sheet(scan: Scan) -> Sheet:
    verdict = scan.verdict
    style = STYLE.get(verdict.status, "red")
    series: dict[str, list[float]] = {
        name: scan.states[name].tolist() for name in ("t_sim", "t_cos") if name in scan.states
    }
    other = hidden(scan)
    rest: list[Part] = []
    named = massive_tokens(scan)
    massive = [Line(f"massive tokens, position x how many times the median: {named}")] if named else []
    if "rest" in other:
        series["t_sim rest"] = other["rest"].tolist()
        rest = [Line("and without massive tokens", "bold"), Bars(series["t_sim rest"], style)]
    body: list[Part] = [
        Line(header(scan), "dim"),
        Line("token similarity t_sim, block by block", "bold"),
        Bars(series["t_sim"], style),
        *rest,
        Line([(f"{verdict.status.upper()}. ", f"bold {style}"), verdict.text, " ", (verdict.advice, "bold")]),
        Curves(series, "token similarity over depth"),
        Grid(*table(scan), gap=1),
        *massive,
        Line(f"{LEGEND} {REST}" if other else LEGEND, "dim"),
    ]
    names, cells, legend = by_position(scan)
    if cells:
        body += [Grid(names, cells, gap=1), Line(legend, "dim")]
    return Sheet(scan.title, [*body, *notes(scan.notes)], style)


def comparison(before: Scan, after: Scan) -> Sheet:
    """Two scans of one model side by side, before and after a remedy."""
    names, cells = side_by_side(before, after)
    verdicts = " -> ".join(scan.verdict.status.upper() for scan in (before, after))
    same = torch.allclose(before.states["t_div"], after.states["t_div"], rtol=1e-5)
    why = ["nothing changed. This remedy starts as the plain model; it acts once trained."] if same else []
    body: list[Part] = [
        _curves([before, after]),
        Grid(names, cells, fold=None),
        Line(f"verdict: {verdicts}", "bold"),
        *notes(why),
    ]
    return Sheet(f"before and after {', '.join(after.remedies)}", body)


def together(scans: Sequence[Scan]) -> Sheet:
    """The curves of several scans."""
    return Sheet("Token similarity t_sim, together", [_curves(scans)])


def _curves(scans: Sequence[Scan]) -> Curves:
    series = {f"{i}: {scan.title}": scan.states["t_sim"].tolist() for i, scan in enumerate(scans, start=1)}
    return Curves(series, "t_sim of all scans", width=760, height=260)


def draw(scan: Scan, figure: Any) -> None:
    draw_scans(figure, *([scan] if scan.before is None else [scan.before, scan]))
