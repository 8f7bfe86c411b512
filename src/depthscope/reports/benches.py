"""A bench: the ratio of every cell with its spread, why it is above the aim, how the cost grows, what is missing."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from depthscope.benches.record import (
    AIMS,
    HEADS,
    MEMORY_AIM,
    PLAIN,
    SIDES,
    STATES,
    Bench,
    Measured,
)
from depthscope.benches.shares import Shares, shares
from depthscope.reports.sheet import Grid, Line, Part, Sheet, notes

SIZE = (10, 4.5)
WIDTH = 80  # columns of a terminal that every table fits
SAID = {STATES: "state metrics", HEADS: "attention statistics"}
ABOUT = (
    "Ratios are scan / plain forward pass of the fastest runs; a-b is the lowest and the highest ratio of a round. "
    f"states: attention=False, aim {AIMS[STATES]:.2f}; heads: with attention statistics, aim {AIMS[HEADS]:.2f}; "
    "* is above the aim."
)
FEW = (
    "2 of 48: two of 48 blocks ran, and the forward pass is theirs. Such ratios of states are upper bounds (<): "
    "a scan measures one state more than there are blocks, and some things once."
)
WHY = (
    "Percent of the extra time of the cells above the aim, from one run of each side, operator by operator. products: "
    "of matrices, and decompositions; memory: operators that read and write tensors; calls: operators on less than "
    "64 KiB, whose time is the call; outside: Python and hooks. fixed: what as many blocks add in the smallest cell. "
    "GFLOP, GB, ops (operators): what a scan does beyond a pass, for each block and a million numbers of its state."
)


def sheets(bench: Bench) -> list[Sheet]:
    body: list[Part] = [Line(head(bench)), *map(Line, within(bench)), Line(ABOUT)]
    body += [Line(FEW)] if any(one.ran is not None for one in bench.cells) else []
    body += [ratios(bench.cells), *_rest(bench)]
    for title, part in (
        ("How the extra time grows", _growth(bench)),
        ("What the extra time is made of", made_of(bench)),
    ):
        body += [Line(""), Line(title, "bold"), *part] if part else []
    return [Sheet("What a scan costs", body, None)]


def head(bench: Bench) -> str:
    """One line: what was measured, where and how."""
    done, asked = len(bench.cells), len(bench.cells) + len(bench.not_measured)
    clock = "processor time" if bench.clock == "cpu" else "time by the wall clock"
    return (
        f"{done} of {asked} cells, {bench.repeats} rounds, {clock}; {bench.processor}, {bench.device}, "
        f"{bench.threads} thread{'s' if bench.threads > 1 else ''}, torch {bench.torch}"
    )


def within(bench: Bench) -> list[str]:
    """A sentence for each kind of scan: how many cells that ran whole meet the aim, and the median of each width."""
    said, whole = [], [one for one in bench.cells if one.ran is None]
    for side in SIDES if whole else ():
        widths = sorted({one.cell.width for one in whole})
        usual = [median(one.ratio(side) for one in whole if one.cell.width == width) for width in widths]
        met = sum(not one.above(side) for one in whole)
        told = ", ".join(f"{value:.2f} at d {width}" for width, value in zip(widths, usual, strict=True))
        which = "cells" if len(whole) == len(bench.cells) else "cells that ran whole"
        said.append(f"{SAID[side].capitalize()}: {met} of {len(whole)} {which} meet the aim; medians {told}.")
    return said


def ratios(cells: Sequence[Measured]) -> Grid:
    names = ["kind", "d", "h", "B x n", "blocks", "forward", "states", "spread", "heads", "spread"]
    by_size = sorted(cells, key=lambda one: one.cell)
    return Grid(names, [_row(one) for one in by_size], gap=1, left=1)


def _row(one: Measured) -> list[Any]:
    cell = one.cell
    blocks = str(cell.depth) if one.ran is None else f"{one.ran} of {cell.depth}"
    sizes = [cell.kind, str(cell.width), str(cell.heads), f"{cell.batch} x {cell.tokens}", blocks]
    costs = [words for side in SIDES for words in (ratio(one, side), _spread(one, side))]
    return [*sizes, _time(one.fastest()), *costs]


def ratio(one: Measured, side: str) -> str:
    bound = one.ran is not None and side == STATES
    return f"{'<' if bound else ''}{one.ratio(side):.2f}{'*' if one.above(side) and not bound else ' '}"


def _spread(one: Measured, side: str) -> str:
    low, high = one.spread(side)
    return f"{low:.2f}-{high:.2f}" if len(one.times[side]) > 1 else "once"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"


def compared(before: Bench, after: Bench) -> Grid:
    """Ratios before and after, in the cells of which both ran as many blocks."""
    rows = []
    for old in before.cells:
        new = after.at(old.cell)
        if new is not None and new.as_run == old.as_run:
            sides = [words for side in SIDES for words in (ratio(old, side), ratio(new, side))]
            rows.append([str(old.cell), *sides])
    return Grid(["cell", "states before", "after", "heads before", "after"], rows, left=1)


def _rest(bench: Bench) -> list[Part]:
    """Memory, what was not measured, and notes."""
    body: list[Part] = []
    if bench.peaks:
        body += [Line(""), Line(f"peak memory / plain forward, aim {MEMORY_AIM:.2f} ({bench.peaks[0].how})", "bold")]
        rows = [
            [str(p.cell), f"{p.mib[PLAIN]:.0f}", *(f"{p.ratio(side):.2f}" for side in SIDES), f"{p.once:.0f}"]
            for p in bench.peaks
        ]
        body.append(Grid(["cell", "plain MiB", "states", "heads", "first scan MiB"], rows, gap=1, left=1))
    if bench.not_measured:
        body += [Line(""), Line(f"not measured: {len(bench.not_measured)} cells", "bold")]
        rows = [[str(one.cell), one.why] for one in bench.not_measured]
        body.append(Grid(["cell", "why"], rows, left=2, fold=None))
    left_out = [f"{one.cell}: {one.left_out}; its ratio does not count" for one in bench.cells if one.left_out]
    return [*body, *notes([*bench.notes, *left_out])]


def made_of(bench: Bench) -> list[Part]:
    """What the extra time of the cells above the aim is made of, a row for each kind, width and length."""
    rows = [
        [side, *map(str, size), *_shares(shares(cells, side))]
        for side in SIDES
        for size, cells in _alike(bench.above(side), side).items()
    ]
    names = ["scan", "kind", "d", "n", "products", "memory", "calls", "outside", "fixed", "GFLOP", "GB", "ops"]
    return [Line(WHY), Grid(names, rows, gap=1, left=2)] if rows else []


def _shares(of: Shares) -> list[str]:
    percents = [f"{100 * part:.0f}" for part in (of.products, of.memory, of.calls, of.outside, of.fixed)]
    return [*percents, f"{of.gflop:.2f}", f"{of.gb:.2f}", f"{of.operators:.0f}"]


def _alike(cells: Sequence[Measured], side: str) -> dict[tuple[str, int, int], list[Measured]]:
    """Cells of one kind, width and length that were counted, in the order of these sizes; what ran once counts once."""
    found: dict[tuple[str, int, int], list[Measured]] = {}
    for one in sorted({one.as_run: one for one in cells}.values(), key=lambda one: one.cell):
        if side in one.parts:
            found.setdefault((one.cell.kind, one.cell.width, one.cell.tokens), []).append(one)
    return found


def _growth(bench: Bench) -> list[Part]:
    """The exponents, and what has none."""
    if not bench.growth:
        return []
    sizes = list(dict.fromkeys(name for fit in bench.growth for name in fit.exponents))
    rows = [
        [fit.kind, fit.side, *(_power(fit.exponents.get(name)) for name in sizes), f"{fit.r2:.3f}", str(fit.cells)]
        for fit in bench.growth
    ]
    said = dict.fromkeys(f"{fit.kind}, {fit.side}: {note}" for fit in bench.growth for note in fit.notes)
    told = "Extra seconds of a scan as a product of powers of the sizes, by least squares on logarithms."
    return [Line(told), Grid(["kind", "scan", *sizes, "r^2", "cells"], rows, left=2), *notes(list(said))]


def _power(exponent: float | None) -> str:
    return "" if exponent is None else f"{exponent:.2f}"


def draw(bench: Bench, figure: Any) -> None:
    """The ratios over the operations of the pass, with the aims."""
    ax = figure.subplots()
    for side, mark in zip(SIDES, "os", strict=True):
        at = [one.cell.forward_flops / 1e9 for one in bench.cells]
        line = ax.plot(at, [one.ratio(side) for one in bench.cells], mark, ms=4, label=f"{SAID[side]}, aim dashed")
        ax.axhline(AIMS[side], color=line[0].get_color(), ls="--", lw=0.8)
    ax.set(xscale="log", yscale="log", xlabel="operations of a plain pass, 1e9", ylabel="scan / plain forward")
    ax.set_title(head(bench), fontsize=8)
    ax.legend(fontsize=8, frameon=False)
