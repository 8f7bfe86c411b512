"""Charts in the words of plotly.js. All names are escaped: plotly reads tags in them."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from depthscope.reports.story import Chart, Heat, Trace, Value

DASH = {"solid": "solid", "dash": "7px,5px", "dot": "2px,4px", "points": "solid"}
FEW = 16  # values up to which every point of a curve is marked
TOLD = 6  # curves that a description names


def figure(chart: Chart | Heat) -> dict[str, Any]:
    """Data and layout for plotly; `legend` has the names and which of the data belong to each. Colours are places in
    the palette, which the page fills in for light and dark."""
    return _heat(chart) if isinstance(chart, Heat) else _curves(chart)


def _curves(chart: Chart) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    legend: list[dict[str, Any]] = []
    least = min((v for t in chart.traces for v in t.y if math.isfinite(v) and v > 0), default=1e-12)
    for trace in chart.traces:
        first = len(data)
        x = _plain(trace.x or range(len(trace.y)))
        if trace.band is not None:
            data += _band(trace, x, least / 2 if chart.log else -math.inf)
        data.append(_bar(trace, x) if chart.bars else _line(trace, x))
        for one in data[first:]:
            one["visible"] = not trace.hidden
        legend.append(
            {"name": trace.name, "colour": trace.colour, "line": trace.line, "hidden": trace.hidden}
            | {"of": [*range(first, len(data))]}
        )
    axis: dict[str, Any] = {"title": {"text": _safe(chart.y)}, "type": "log" if chart.log else "linear"}
    if math.isfinite(chart.low) and math.isfinite(chart.high):
        room = 0.03 * (chart.high - chart.low)
        axis["linear"] = [chart.low - room, chart.high + room]
    layout: dict[str, Any] = {"xaxis": {"title": {"text": _safe(chart.x)}}, "yaxis": axis}
    if chart.bars:
        layout |= {"barmode": "relative", "bargap": 0.15}
    marks = [{"name": _safe(name), "at": value} for name, value in chart.marks.items() if math.isfinite(value)]
    shown = {"data": data, "layout": layout, "legend": legend, "marks": marks}
    if all(trace.line == "points" for trace in chart.traces):  # of a plane: each is told by itself
        for one in data:
            one["hovertemplate"] = "%{x:.4g}, %{y:.4g}"
        return {"kind": "points", "switch": chart.switch, **shown}
    return {"kind": "curves", "switch": chart.switch, **shown}


def _line(trace: Trace, x: list[Any]) -> dict[str, Any]:
    mode = "markers" if trace.line == "points" else "lines+markers" if len(trace.y) <= FEW else "lines"
    return {
        "type": "scatter",
        "mode": mode,
        "name": _safe(trace.name),
        "x": x,
        "y": _plain(trace.y),
        "line": {"width": 2, "dash": DASH[trace.line]},
        "marker": {"size": 6 if trace.line == "points" else 5},
        "hovertemplate": "%{y:.4g}",
        "meta": {"colour": trace.colour, "part": "line"},
    }


def _bar(trace: Trace, x: list[Any]) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": _safe(trace.name),
        "x": x,
        "y": _plain(trace.y),
        "hovertemplate": "%{y:.4g}",
        "meta": {"colour": trace.colour, "part": "bar"},
    }


def _band(trace: Trace, x: list[Any], least: float) -> list[dict[str, Any]]:
    """The two edges, the area between them filled; on a log scale nothing lies below half the least value."""
    assert trace.band is not None
    edges = []
    for side, values in zip(("lower", "upper"), trace.band, strict=True):
        edge = {
            "type": "scatter",
            "mode": "lines",
            "name": _safe(f"{trace.name}, {side} edge"),
            "x": x,
            "y": _plain(max(value, least) for value in values),
            "line": {"width": 0},
            "hovertemplate": "%{y:.4g}",
            "meta": {"colour": trace.colour, "part": f"band {side}"},
        }
        edges.append(edge | ({"fill": "tonexty"} if side == "upper" else {}))
    return edges


def _heat(chart: Heat) -> dict[str, Any]:
    values = [_plain(row) for row in chart.values]
    known = [v for row in values for v in row if v is not None]
    low = chart.low if math.isfinite(chart.low) else min(known, default=0.0)
    high = chart.high if math.isfinite(chart.high) else max(known, default=1.0)
    if math.isfinite(chart.middle):
        reach = max(abs(high - chart.middle), abs(low - chart.middle)) or 1.0
        low, high = chart.middle - reach, chart.middle + reach
    x, y, unit = _safe(chart.x), _safe(chart.y), _safe(chart.unit)
    trace = {
        "type": "heatmap",
        "z": values,
        "x": _plain(chart.columns),
        "y": _plain(chart.rows),
        "zmin": low,
        "zmax": high,
        "colorbar": {"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        "hovertemplate": f"{x} %{{x}}, {y} %{{y}}: %{{z:.4g}}<extra></extra>",
        "xgap": 1 if len(chart.columns) <= 64 else 0,
        "ygap": 1 if len(chart.rows) <= 64 else 0,
        "meta": {"part": "diverging" if math.isfinite(chart.middle) else "heat"},
    }
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, "type": "linear"}}
    return {
        "kind": "heat",
        "data": [trace],
        "layout": layout,
        "legend": [],
        "marks": [],
        "switch": False,
        "rows": len(chart.rows),
    }


def description(chart: Chart | Heat) -> str:
    """What a reader who does not see the chart is told."""
    if isinstance(chart, Heat):
        known = [v for row in chart.values for v in row if math.isfinite(v)]
        span = f"from {min(known):.3g} to {max(known):.3g}" if known else "without numbers"
        return f"Heat map, {chart.title}: {len(chart.rows)} x {len(chart.columns)} values {span}."
    named = "; ".join(_course(trace) for trace in chart.traces[:TOLD])
    more = f"; and {len(chart.traces) - TOLD} more" if len(chart.traces) > TOLD else ""
    return f"{'Bars' if chart.bars else 'Curves'}, {chart.title}, over {chart.x}: {named}{more}."


def _course(trace: Trace) -> str:
    pairs = [(x, y) for x, y in zip(trace.x or range(len(trace.y)), trace.y, strict=True) if math.isfinite(y)]
    if not pairs:
        return f"{trace.name} has no numbers"
    return f"{trace.name} goes from {pairs[0][1]:.3g} at {pairs[0][0]} to {pairs[-1][1]:.3g} at {pairs[-1][0]}"


def _safe(name: str) -> str:
    return escape(name, quote=False)


def _plain(values: Iterable[Value] | Sequence[float]) -> list[Any]:
    """Seven digits, which is more than a screen shows; null where a number is not finite."""
    return [_one(value) for value in values]


def _one(value: Any) -> Any:
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, int):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None
