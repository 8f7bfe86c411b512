"""Ablations as a table, a picture and a fragment of HTML: which part of a block keeps the tokens apart?"""

import math
from typing import Any

from depthscope.ablations.record import COLLAPSED, Ablations, Row
from depthscope.reports.chart import COLOURS
from depthscope.reports.rows import header
from depthscope.reports.sheet import Grid, Line, Part, Sheet, notes

SIZE = (11, 4.4)
COLUMNS = ("relative_residual", "t_sim", "t_cos", "token_norm", "stable_rank")
LEGEND = (
    "relative residual: |X - 1 x^T| / |X| with x the mean token, in Dong et al.'s composite norm (0: all tokens are "
    "one); t_sim: share of the signal that all tokens have in common; t_cos: mean cosine of two tokens; token norm: "
    "mean length of a token; stable rank: 1 = all tokens on one line; all after the last block. collapse: the block "
    "from which on the relative residual is below 0.001 (in half precision: below its floor). Below what stands after "
    "< there is rounding noise alone."
)


def table(ablations: Ablations) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, one row for each combination."""
    names = [*(name.replace("_", " ") for name in (*ablations.parts, *COLUMNS)), "collapse", ""]
    return names, [_cells(row, ablations.parts) for row in ablations.rows]


def _cells(row: Row, parts: tuple[str, ...]) -> list[str]:
    kept = ["-" if part in row.removed else "kept" for part in parts]
    ends = row.until == row.scan.depth
    numbers = [_number(float(row.scan[name][-1])) if ends else "-" for name in COLUMNS]
    if row.residual < row.floor:
        numbers[0] = f"< {row.floor:.0e}"  # what is printed below it would be noise
    return [*kept, *numbers, "no" if row.collapse is None else f"block {row.collapse}", "" if ends else row.ending]


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.1e}"


def remarks(ablations: Ablations) -> list[str]:
    """What a reader should know of the whole model, and of the way in which the rows were made."""
    found = list(ablations[()].scan.notes)
    if "ffn" in ablations.parts and {"skips", "ffn_skip"} & {*ablations.parts}:
        found.append("without ffn a block's second half is left out, Y -> Y, so that its skip has nothing to skip")
    return found


def sheets(ablations: Ablations) -> list[Sheet]:
    names, cells = table(ablations)
    styles = ["green" if row.collapse is None else "red" for row in ablations.rows]
    body: list[Part] = [
        Line(header(ablations[()].scan), "dim"),
        Grid(names, cells, gap=1, left=len(ablations.parts), fold=None, styles=styles),
        Line(ablations.verdict, "bold"),
        Line(LEGEND, "dim"),
        *notes(remarks(ablations)),
    ]
    return [Sheet(f"{ablations[()].scan.title} without {', '.join(ablations.parts)}: all combinations", body)]


def draw(ablations: Ablations, figure: Any) -> None:
    """Relative residual and token norm over depth, one line for each combination."""
    left, right = figure.subplots(1, 2)
    *first, last = ablations.parts
    for row in ablations.rows:
        # the last part is told by dashes, the others by colour: lines of one colour differ in that part alone
        index = sum(2**k for k, part in enumerate(first) if part in row.removed)
        style = {
            "color": COLOURS[index] if index < len(COLOURS) else f"C{index}",
            "ls": "--" if last in row.removed else "-",
        }
        end = row.until + 1
        curve = row.scan["relative_residual"][:end].clamp_min(row.floor)
        left.semilogy(curve, label=row.label, marker=".", ms=4, **style)
        right.semilogy(row.scan["token_norm"][:end], marker=".", ms=4, **style)
        if end <= row.scan.depth:
            left.plot(row.until, curve[-1], "x", ms=9, **style)
    left.axhline(COLLAPSED, color="0.6", lw=0.8, ls=":")
    left.axhline(ablations[()].floor, color="0.6", lw=0.8, ls="-.", label=f"floor of {ablations[()].scan.dtype}")
    left.set(xlabel="block")
    left.set_title("relative residual (x: tokens vanish or overflow)", fontsize=10)
    right.set(xlabel="block")
    right.set_title("token norm", fontsize=10)
    for ax in (left, right):
        ax.grid(alpha=0.25)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(ablations[()].scan.title, fontsize=10)
