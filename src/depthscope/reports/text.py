"""A scan for the terminal: what was scanned, a chart of similarity over depth, the verdict, a table."""

import io
from typing import Any

import torch

from depthscope.reports.chart import bars
from depthscope.reports.rows import LEGEND, by_position, header, side_by_side, table
from depthscope.scans.record import Scan

_STYLE = {"diverse": "green", "escalating": "yellow"}


def scan_view(scan: Scan) -> Any:
    """The scan as a rich renderable."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    verdict = scan.verdict
    style = _STYLE.get(verdict.status, "red")
    chart = "\n".join(bars(scan.states["t_sim"].tolist()))

    def grid(names: list[str], cells: list[list[str]]) -> Table:
        shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for name in names:
            shown.add_column(name, justify="right", no_wrap=True)
        for row in cells:
            shown.add_row(*row)
        return shown

    body: list[Any] = [
        Text(header(scan), style="dim"),
        Text("token similarity t_sim, block by block", style="bold"),
        Text(chart, style=style, no_wrap=True),
        Text.assemble((f"{verdict.status.upper()}. ", f"bold {style}"), verdict.text, " ", (verdict.advice, "bold")),
        grid(*table(scan)),
        Text(LEGEND, style="dim"),
    ]
    names, cells, legend = by_position(scan)
    if cells:
        body += [grid(names, cells), Text(legend, style="dim")]
    body += [Text(f"note: {note}", style="yellow") for note in scan.notes]
    return Panel(Group(*body), title=scan.title, title_align="left", border_style=style)


def comparison_view(before: Scan, after: Scan) -> Any:
    """Two scans of one model side by side, before and after a remedy."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    names, cells = side_by_side(before, after)
    for name in names:
        grid.add_column(name, justify="right")
    for row in cells:
        grid.add_row(*row)
    verdicts = " -> ".join(scan.verdict.status.upper() for scan in (before, after))
    body: list[Any] = [grid, Text(f"verdict: {verdicts}", style="bold")]
    if torch.allclose(before.states["t_div"], after.states["t_div"], rtol=1e-5):
        body.append(
            Text("note: nothing changed. This remedy starts as the plain model; it acts once trained.", "yellow")
        )
    return Panel(Group(*body), title=f"before and after {', '.join(after.remedies)}", title_align="left")


def scan_text(scan: Scan, width: int = 110) -> str:
    """The same as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(scan_view(scan))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]
