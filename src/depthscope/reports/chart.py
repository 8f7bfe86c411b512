"""Small charts made of characters: nothing to install, readable in a terminal. And the colours of all pictures."""

import math
from collections.abc import Sequence

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
