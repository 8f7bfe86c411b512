"""Bounds for the terminal and as a picture: what the theorem says, and what is found."""

import math
from typing import Any

from depthscope.circuits.bounds_record import EMPTY, Bounds, power
from depthscope.reports.chart import sampled
from depthscope.reports.sheet import Grid, Line, Part, Sheet, notes

SIZE = (13, 4.2)
WIDTH = 120
LEGEND = (
    "before, after: the residual |res(X)|_{1,inf} of what attention reads and gives, res(X) = tokens without their "
    "mean. bound: what holds for one block. printed: the paper's, gamma = 1. above: orders of magnitude between bound "
    "and truth, in brackets where all tokens of this size are below the bound. power: with which after follows before; "
    "3 is the cubic rate. D: how far scores differ because tokens do; the paper needs 1.256 at most. FFN: its "
    "Lipschitz constant, at least .. at most."
)


def sheets(found: Bounds) -> list[Sheet]:
    what = f"{found.depth} blocks, {found.heads} heads, width {found.width}, {found.samples} x {found.tokens} tokens"
    table = Grid(*rows(found), gap=1)
    body: list[Part] = [Line(what, "dim"), Line(found.verdict, "bold"), table, Line(LEGEND, "dim"), *notes(found.notes)]
    return [Sheet(f"bounds: {found.model}", body)]


def rows(found: Bounds, most: int = 24) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, one row for each block; in deep models some of them."""
    names = ["block", "before", "after", "bound", "printed", "above", "power", "D", "gamma", "beta", "FFN"]
    cells = []
    for k in sampled(found.depth, most):
        row = found.blocks[k]
        above = _number(row.log_bound - row.log_out, 1)
        logs = [power(v) for v in (row.log_in, row.log_out, row.log_bound, row.log_printed)]
        numbers = [_number(row.exponent, 2), f"{row.D:.3g}", f"{row.gamma:.2f}", f"{row.beta:.3g}"]
        cells.append([str(k + 1), *logs, f"({above})" if row.vacuous else above, *numbers, _ffn(row)])
    return names, cells


def _number(x: float, digits: int) -> str:
    """A dash where nothing is left after the block, so that there is nothing to compare with."""
    return "-" if math.isnan(x) else f"{x:.{digits}f}"


def _ffn(row: Any) -> str:
    if math.isnan(row.ffn_lower):
        return "none"
    return f"{row.ffn_lower:.2g}..{'?' if math.isinf(row.ffn_upper) else f'{row.ffn_upper:.3g}'}"


def draw(found: Bounds, figure: Any) -> None:
    """One block at a time; the network of pure attention, and with skips; the power of each block."""
    single, chain, rate = figure.subplots(1, 3)
    blocks = list(range(1, found.depth + 1))
    marks = {"marker": ".", "ms": 5}
    single.plot(blocks, [b.log_out for b in found.blocks], color="C0", label="found", **marks)
    single.plot(blocks, [b.log_bound for b in found.blocks], color="C3", label="bound that holds", **marks)
    single.plot(blocks, [b.log_printed for b in found.blocks], color="C1", ls="--", label="printed (gamma = 1)")
    single.plot(blocks, [b.log_size + EMPTY for b in found.blocks], color="0.5", ls=":", label="twice the size")
    single.set(
        title="each block's attention, on what it reads", xlabel="block", ylabel="log10 of the residual after it"
    )
    networks = (("with skips", found.skips, "C2", "-", 4.0), ("pure attention", found.pure, "C0", "--", 1.5))
    for name, one, colour, line, width in networks:  # the two bounds nearly agree: a thin line on a broad one
        chain.plot(one.found, color=colour, label=f"{name}: found", **marks)
        chain.plot(one.bound, color=colour, ls=line, lw=width, label=f"{name}: bound")
    if math.isfinite(found.with_ffn[-1]):
        chain.plot(found.with_ffn, color="C4", ls="--", label="with FFN: bound")
    chain.set_yscale("symlog", linthresh=10)
    chain.set(title="networks of these weights, from the input", xlabel="block", ylabel="log10 of the residual")
    rate.plot(blocks, [b.exponent for b in found.blocks], color="C0", label="power found", **marks)
    rate.axhline(3, color="0.5", ls=":", label="cubic")
    rate.plot(blocks, [b.D for b in found.blocks], color="C1", label="D, spread of scores", **marks)
    rate.axhline(1.256, color="C1", ls=":", lw=0.8, label="precondition 1.256")
    rate.set(title="rate of one block", xlabel="block", ylim=(0, None))
    for ax in (single, chain, rate):
        ax.grid(alpha=0.25)
        ax.legend(fontsize=8, frameon=False)
