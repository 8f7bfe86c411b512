"""A scan for the terminal: what was scanned, a chart of similarity over depth, the verdict, a table."""

import io
from typing import Any

from depthscope.reports.chart import bars
from depthscope.reports.rows import LEGEND, header, table
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
    names, cells = table(scan)
    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in names:
        grid.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        grid.add_row(*row)
    body: list[Any] = [
        Text(header(scan), style="dim"),
        Text("token similarity t_sim, block by block", style="bold"),
        Text(chart, style=style, no_wrap=True),
        Text.assemble((f"{verdict.status.upper()}. ", f"bold {style}"), verdict.text, " ", (verdict.advice, "bold")),
        grid,
        Text(LEGEND, style="dim"),
    ]
    body += [Text(f"note: {note}", style="yellow") for note in scan.notes]
    return Panel(Group(*body), title=scan.title, title_align="left", border_style=style)


def scan_text(scan: Scan, width: int = 110) -> str:
    """The same as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(scan_view(scan))
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]
