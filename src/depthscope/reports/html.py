"""A scan as HTML: a fragment for notebooks, and one self-contained page for several scans."""

from html import escape
from pathlib import Path

from depthscope.errors import UsageError
from depthscope.files import whole_file
from depthscope.reports.chart import svg_lines
from depthscope.reports.rows import LEGEND, by_position, header, table
from depthscope.scans.record import Scan

_COLOUR = {"diverse": "#1e8449", "escalating": "#b7950b"}
_CSS = (
    "body{font-family:system-ui,sans-serif;max-width:980px;margin:2em auto;padding:0 1em;color:#222}"
    ".ds-scan table{border-collapse:collapse;font-size:13px;margin:.6em 0}"
    ".ds-scan td,.ds-scan th{padding:2px 9px;text-align:right;border-bottom:1px solid #eee}"
    ".ds-scan .dim{color:#666;font-size:13px}.ds-scan{margin-bottom:2.5em}.ds-note{color:#935116}"
)


def scan_html(scan: Scan) -> str:
    """One scan as an HTML fragment without outside references."""
    verdict = scan.verdict
    colour = _COLOUR.get(verdict.status, "#c0392b")
    series: dict[str, list[float]] = {
        name: scan.states[name].tolist() for name in ("t_sim", "t_cos") if name in scan.states
    }
    names, cells, legend = by_position(scan)
    positions = f'{_table(names, cells)}<p class="dim">{escape(legend)}</p>' if cells else ""
    notes = "".join(f'<p class="ds-note">note: {escape(note)}</p>' for note in scan.notes)
    return (
        f'<div class="ds-scan"><h3>{escape(scan.title)}</h3><p class="dim">{escape(header(scan))}</p>'
        f'<p><b style="color:{colour}">{escape(verdict.status.upper())}.</b> {escape(verdict.text)} '
        f"<b>{escape(verdict.advice)}</b></p>"
        f"{svg_lines(series, label='token similarity over depth')}"
        f'{_table(*table(scan, most=25))}<p class="dim">{escape(LEGEND)}</p>{positions}{notes}</div>'
    )


def _table(names: list[str], cells: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(n)}</th>" for n in names)
    rows = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in cells)
    return f"<table><tr>{head}</tr>{rows}</table>"


def report(*scans: Scan, to: str | Path = "report.html") -> Path:
    """Write scans into one HTML page that needs nothing else: their curves together, then each by itself."""
    if not scans or not all(isinstance(s, Scan) for s in scans):
        got = ", ".join(type(s).__name__ for s in scans) or "nothing"
        raise UsageError(f"report: give one or more scans made by ds.scan; got {got}.")
    together = ""
    if len(scans) > 1:
        series = {f"{i}: {s.title}": s.states["t_sim"].tolist() for i, s in enumerate(scans, start=1)}
        together = "<h3>Token similarity t_sim, together</h3>" + svg_lines(
            series, width=760, height=260, label="t_sim of all scans"
        )
    body = "".join(scan_html(s) for s in scans)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>depthscope report</title>'
        f"<style>{_CSS}</style></head>"
        f"<body><h1>depthscope</h1><p>Where do the tokens grow alike, and why?</p>{together}{body}</body></html>"
    )
    with whole_file(to) as part:
        part.write_text(page, encoding="utf-8")
    return Path(to)
