"""Small charts made of characters and of SVG: nothing to install, readable in a terminal and in a notebook."""

import html
import math
from collections.abc import Mapping, Sequence

BARS = " ▁▂▃▄▅▆▇█"


def sampled(count: int, most: int) -> list[int]:
    """At most `most` indices out of `count`, first and last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def bars(values: Sequence[float], *, height: int = 6, width: int = 64) -> list[str]:
    """Lines of a bar chart of values in [0, 1], highest line first; x marks a value that is not a number."""
    columns = [values[i] for i in sampled(len(values), width)]
    wide = 2 if len(columns) * 2 <= width else 1
    lines = []
    for row in range(height - 1, -1, -1):
        cells = []
        for value in columns:
            if not math.isfinite(value):
                cells.append("x" if row == 0 else " ")
                continue
            level = min(max(value, 0.0), 1.0) * height - row
            cells.append(BARS[round(min(max(level, 0.0), 1.0) * 8)])
        label = {height - 1: "1.0", 0: "0.0"}.get(row, "   ")
        lines.append(f"{label} ┤" + "".join(c * wide for c in cells))
    last = len(values) - 1
    axis = "0" + str(last).rjust(len(columns) * wide - 1)
    return [*lines, "    └" + "─" * (len(columns) * wide), "     " + axis]


def svg_lines(series: Mapping[str, Sequence[float]], *, width: int = 560, height: int = 200, label: str = "") -> str:
    """An SVG line chart of values in [0, 1] over the block index."""
    colours = ("#c0392b", "#2471a3", "#1e8449", "#9a7d0a")
    left, top, right, bottom = 36, 10, 10, 26
    inner_w, inner_h = width - left - right, height - top - bottom
    longest = max(len(v) for v in series.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" aria-label="{html.escape(label)}" font-family="sans-serif" font-size="11">'
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = top + inner_h * (1 - tick)
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/><text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{tick:g}</text>'
        )
    for i in sampled(longest, 9):
        x = left + inner_w * i / max(1, longest - 1)
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle" fill="#555">{i}</text>')
    for (name, values), colour in zip(series.items(), colours, strict=False):
        points = " ".join(
            f"{left + inner_w * i / max(1, longest - 1):.1f},{top + inner_h * (1 - min(max(v, 0.0), 1.0)):.1f}"
            for i, v in enumerate(values)
            if math.isfinite(v)
        )
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"><title>{html.escape(name)}</title></polyline>'
        )
    for k, (name, colour) in enumerate(zip(series, colours, strict=False)):
        parts.append(
            f'<text x="{width - right - 6}" y="{height - bottom - 10 - 14 * k}" text-anchor="end" fill="{colour}">{html.escape(name)}</text>'
        )
    parts.append(
        f'<text x="{left + inner_w / 2}" y="{height - 0.5}" text-anchor="middle" fill="#555">block</text></svg>'
    )
    return "".join(parts)
