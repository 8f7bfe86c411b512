"""Small charts made of characters and of SVG: nothing to install, readable in a terminal and in a notebook."""

import html
import math
from collections.abc import Mapping, Sequence
from itertools import cycle

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


COLOURS = ("#c0392b", "#2471a3", "#1e8449", "#9a7d0a", "#7d3c98")


def svg_lines(series: Mapping[str, Sequence[float]], *, width: int = 560, height: int = 200, label: str = "") -> str:
    """An SVG line chart of values in [0, 1] over the block index."""
    left, top, right, bottom = 36, 10, 10, 26
    inner_w, inner_h = width - left - right, height - top - bottom
    longest = max(len(v) for v in series.values())

    def x(i: int) -> float:
        return left + inner_w * i / max(1, longest - 1)

    def y(value: float) -> float:
        return top + inner_h * (1 - min(max(value, 0.0), 1.0))

    def text(at_x: float, at_y: float, words: str, anchor: str, colour: str = "#555") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img" '
        f'aria-label="{html.escape(label)}" font-family="sans-serif" font-size="11">'
    ]
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        line = f'x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
        parts += [f'<line {line} stroke="#ddd"/>', text(left - 6, y(tick) + 4, f"{tick:g}", "end")]
    parts += [text(x(i), height - 12, str(i), "middle") for i in sampled(longest, 9)]
    for k, ((name, values), colour) in enumerate(zip(series.items(), cycle(COLOURS), strict=False)):
        points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(values) if math.isfinite(v))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(width - right - 6, height - bottom - 10 - 14 * k, name, "end", colour))
    return "".join([*parts, text(left + inner_w / 2, height - 1, "block", "middle"), "</svg>"])
