"""The story of bounds: what the theorem says of every block and of whole networks, and what is found."""

import math

from depthscope.circuits.bounds_record import EMPTY, Bounds
from depthscope.reports.bounds import LEGEND, rows
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.story import Chart, Facts, Story, Table, Tone, Trace, Words, curve, notes

LOG = "log10 of the residual"


def story(found: Bounds) -> Story:
    names, cells = rows(found, most=found.depth)
    status = "the bound is vacuous" if found.pure.vacuous else "the bound tells something"
    tone: Tone = "warn" if found.pure.vacuous else "good"
    sizes = f"{found.depth} blocks, {found.heads} heads, width {found.width}, {found.samples} x {found.tokens} tokens"
    return Story(
        kind="bounds",
        title=f"Bounds: {found.model}",
        records={"bounds": found},
        status=status,
        tone=tone,
        verdict=[Words(found.verdict, "lead", status, tone)],
        where=[_blocks(found), _chains(found)],
        why=[_rates(found)],
        evidence=[Table("All blocks", names, [[*map(value_of, row)] for row in cells], about=LEGEND), _networks(found)],
        how=[Facts({"model": found.model, "sizes": sizes}), *notes(found.notes)],
    )


def _blocks(found: Bounds) -> Chart:
    traces = [
        curve("found", [b.log_out for b in found.blocks], 1, colour=1),
        curve("bound that holds", [b.log_bound for b in found.blocks], 1, colour=0),
        curve("printed in the paper, gamma = 1", [b.log_printed for b in found.blocks], 1, line="dash", colour=4),
        curve("twice the size of the tokens", [b.log_size + EMPTY for b in found.blocks], 1, line="dot", colour=7),
    ]
    says = "A bound above the dotted line says nothing: no residual can be larger."
    return Chart("Each block's attention, on what it reads", traces, says, y=LOG, switch=False)


def _chains(found: Bounds) -> Chart:
    traces: list[Trace] = []
    for name, one, colour in (("with skips", found.skips, 2), ("pure attention", found.pure, 1)):
        traces.append(curve(f"{name}: found", one.found, colour=colour))
        traces.append(curve(f"{name}: bound", one.bound, line="dash", colour=colour))
    if math.isfinite(found.with_ffn[-1]):
        traces.append(curve("with feed-forward networks: bound", found.with_ffn, line="dash", colour=3))
    says = "Networks made of these weights, from the input on. The gap between dashed and solid is what a bound misses."
    return Chart("Whole networks of this attention", traces, says, y=LOG, switch=False)


def _networks(found: Bounds) -> Table:
    names = ["block", "pure: found", "pure: bound", "skips: found", "skips: bound", "with FFN: bound"]
    columns = [found.pure.found, found.pure.bound, found.skips.found, found.skips.bound, found.with_ffn]
    rows = [[i, *(column[i] for column in columns)] for i in range(found.depth + 1)]
    return Table(f"Whole networks, {LOG}", names, rows)


def _rates(found: Bounds) -> Chart:
    traces = [
        curve("power found", [b.exponent for b in found.blocks], 1, colour=1),
        curve("D, how far scores differ", [b.D for b in found.blocks], 1, colour=4),
    ]
    marks = {"3: the cubic rate": 3.0, "1.256: the paper's limit on D": 1.256}
    return Chart(
        "Rate of one block", traces, "With which power the residual after a block follows the one before.", marks=marks
    )
