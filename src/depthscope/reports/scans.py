"""A scan: what was scanned, a chart of similarity over depth, the verdict, a table; with `before` both side by side."""

from dataclasses import replace
from typing import Any

import torch

from depthscope.reports.rows import (
    LEGEND,
    REST,
    SIZES,
    all_streams,
    by_position,
    called,
    header,
    hidden,
    massive_tokens,
    over_batches,
    side_by_side,
    table,
)
from depthscope.reports.scan_plots import draw_scans
from depthscope.reports.sheet import Bars, Grid, Line, Part, Sheet, notes
from depthscope.scans.record import Scan
from depthscope.traces.streams import ALONE

SIZE = (11, 7)
STYLE = {"diverse": "green", "escalating": "yellow"}


def sheets(scan: Scan) -> list[Sheet]:
    if scan.before is None:
        return [sheet(scan), *(other(one, scan) for one in scan.others.values())]
    after = scan.streams
    pairs = [(one, after[name]) for name, one in scan.before.streams.items() if name in after]
    told = [(one, two) for one, two in pairs if two.stream == scan.stream or two.remedies or not _unchanged(one, two)]
    return [*sheets(scan.before), *sheets(replace(scan, before=None)), *(comparison(*pair) for pair in told)]


def sheet(scan: Scan) -> Sheet:
    """The scan of a stream, the main one where a model has several."""
    style = _style(scan)
    more = hidden(scan)
    legend = [SIZES] * bool(scan.sizes) + [LEGEND] + [REST] * bool(more)
    rest: list[Part] = []
    if "rest" in more:
        rest = [Line("and without massive tokens", "bold"), Bars(more["rest"].tolist(), style)]
    body: list[Part] = [
        *([Line(all_streams(scan), "bold")] if scan.others else []),
        Line(header(scan), "dim"),
        *([Line(certain, "dim")] if (certain := over_batches(scan)) else []),
        Line("token similarity t_sim, block by block", "bold"),
        Bars(scan.states["t_sim"].tolist(), style),
        *rest,
        _verdict(scan),
        Grid(*table(scan), gap=1),
        *_massive(scan),
        Line(" ".join(legend), "dim"),
    ]
    names, cells, below = by_position(scan)
    if cells:
        body += [Grid(names, cells, gap=1), Line(below, "dim")]
    return Sheet(called(scan), [*body, *notes(scan.notes)], style)


def other(scan: Scan, main: Scan) -> Sheet:
    """Another stream of the same model: its verdict and its numbers; what the main one has told is not told again."""
    body: list[Part] = [
        Line(header(scan), "dim"),
        _verdict(scan),
        Grid(*table(scan, without=("t_cos", "entropy")), gap=1),
        *_massive(scan),
    ]
    new = [note for note in scan.notes if note not in main.notes]
    return Sheet(called(scan), [*body, *notes(new)], _style(scan))


def _style(scan: Scan) -> str:
    return STYLE.get(scan.verdict.status, "red")


def _verdict(scan: Scan) -> Line:
    said = scan.verdict
    return Line([(f"{said.status.upper()}. ", f"bold {_style(scan)}"), said.text, " ", (said.advice, "bold")])


def _massive(scan: Scan) -> list[Part]:
    named = massive_tokens(scan)
    return [Line(f"massive tokens, position x how many times the median: {named}")] if named else []


def comparison(before: Scan, after: Scan) -> Sheet:
    """Two scans of one model side by side, before and after a remedy."""
    names, cells = side_by_side(before, after)
    verdicts = " -> ".join(scan.verdict.status.upper() for scan in (before, after))
    still = "nothing changed: at the start this remedy leaves the model as it is. It acts once it is trained."
    why = [still] if _unchanged(before, after) else []
    body: list[Part] = [
        Grid(names, cells, fold=None),
        Line(f"verdict: {verdicts}", "bold"),
        *notes(why),
    ]
    stream = "" if after.stream == ALONE else f"{after.stream} "
    return Sheet(f"{stream}before and after {', '.join(after.remedies) or 'remedies elsewhere'}", body)


def _unchanged(before: Scan, after: Scan) -> bool:
    return torch.allclose(before.states["t_div"], after.states["t_div"], rtol=1e-5)


def draw(scan: Scan, figure: Any) -> None:
    """All streams in the upper panels; steps and heads below are of the main one, before a remedy if there is one."""
    scans = [scan] if scan.before is None else [scan.before, scan]
    draw_scans(figure, *(one for whole in scans for one in whole.streams.values()))
