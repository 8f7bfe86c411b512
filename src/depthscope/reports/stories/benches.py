"""The story of a bench: what scans cost over plain passes, cell by cell, and why."""

from depthscope.benches.record import AIMS, SIDES, Bench, Measured
from depthscope.reports.benches import ABOUT, FEW, SAID, head, made_of
from depthscope.reports.sheet import Grid, Line
from depthscope.reports.stories.by_sheets import table_of
from depthscope.reports.story import Chart, Facts, Part, Story, Table, Tone, Trace, Value, Words, notes


def story(bench: Bench) -> Story:
    above = {side: len(bench.above(side)) for side in SIDES}
    count = len(bench.cells)
    status = "within the aims" if not any(above.values()) else "above an aim"
    tone: Tone = "warn" if any(above.values()) else "good"
    said = " ".join(
        f"{SAID[side].capitalize()}: {above[side]} of {count} cells cost more than {AIMS[side]:g} times a plain pass."
        for side in SIDES
    )
    return Story(
        kind="bench",
        title="What a scan costs",
        records={"bench": bench},
        status=status,
        tone=tone,
        verdict=[Words(said, "lead", status, tone)],
        where=[_ratios(bench)],
        why=_why(bench),
        evidence=_tables(bench),
        how=[
            Facts({"measured": head(bench), "depthscope": bench.depthscope}),
            Words(f"{ABOUT} {FEW}", "small"),
            *notes(bench.notes),
        ],
    )


def _ratios(bench: Bench) -> Chart:
    cells = sorted(bench.cells, key=lambda one: one.cell.forward_flops)
    at = [one.cell.forward_flops / 1e9 for one in cells]
    traces = [
        Trace(SAID[side], [one.ratio(side) for one in cells], at, line="points", colour=i)
        for i, side in enumerate(SIDES)
    ]
    marks = {f"aim: {SAID[side]}": aim for side, aim in AIMS.items()}
    says = "Each point is a cell. 1 would be free."
    return Chart("Scan over plain pass", traces, says, x="operations of a plain pass, 1e9", y="ratio", marks=marks)


def _why(bench: Bench) -> list[Part]:
    return [
        Words(part.text, "small") if isinstance(part, Line) else table_of(part, "What the extra time is made of")
        for part in made_of(bench)
        if isinstance(part, Line | Grid)
    ]


def _row(one: Measured) -> list[Value]:
    cell = one.cell
    costs = [number for side in SIDES for number in (one.ratio(side), *one.spread(side))]
    sizes: list[Value] = [cell.kind, cell.width, cell.heads, cell.batch, cell.tokens, cell.depth, one.as_run.depth]
    return [*sizes, one.fastest(), *costs]


def _tables(bench: Bench) -> list[Part]:
    names = [
        "kind",
        "d",
        "h",
        "batch",
        "n",
        "depth",
        "blocks that ran",
        "forward, s",
        *(f"{word} {s}" for s in SIDES for word in ("ratio", "lowest", "highest")),
    ]
    rows = [_row(one) for one in bench.cells]
    parts: list[Part] = [Table("All cells", names, rows, 1)]
    if bench.peaks:
        peaks: list[list[Value]] = [
            [str(one.cell), one.mib["plain"], *(one.ratio(side) for side in SIDES)] for one in bench.peaks
        ]
        parts.append(Table("Peak memory", ["cell", "plain, MiB", *SIDES], peaks, 1))
    if bench.not_measured:
        missing = Grid(["cell", "why"], [[str(one.cell), one.why] for one in bench.not_measured], left=2)
        parts.append(table_of(missing, "Not measured"))
    if bench.growth:
        fits: list[list[Value]] = [
            [
                fit.kind,
                fit.side,
                ", ".join(f"{name}^{power:.2f}" for name, power in fit.exponents.items()),
                fit.r2,
                fit.cells,
            ]
            for fit in bench.growth
        ]
        parts.append(Table("How the extra time grows", ["kind", "scan", "powers of the sizes", "r2", "cells"], fits, 3))
    return parts
