"""Effective depth as a table and a picture: which blocks earn their place, and what doing without the others costs."""

import math
from typing import Any

import torch
from torch import Tensor

from depthscope.depths.record import EffectiveDepth
from depthscope.depths.words import numbered
from depthscope.reports.chart import COLOURS
from depthscope.reports.sheet import Curves, Grid, Line, Part, Sheet, notes

SIZE = (12, 8.4)
WIDTH = 132
BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "fontsize": 8, "frameon": False}
STYLES = ("-", "--", "-.", ":")  # so that curves that are the same are all seen
CHEAPEST = 4  # blocks
MASSIVE = 0.01  # influence with and without massive tokens that differs by more is told
LEGEND = (
    "influence: 1 - mean cos(x, y) of a block's input and output (block influence, ShortGPT); angle: between them, as "
    "a part of a half turn; skip: change of the loss when the block alone is left out, with the standard error of its "
    "mean; swap: when it changes places with the next; no attn, no ffn: when one branch alone is left out; attn, ffn: "
    "|branch| / |stream| where it joins, and the cosine of the two (near 0 it writes, above it strengthens, below it "
    "erases); KL, top: the model's own final norm and head read after the block, against what the model says in the "
    "end. Influence, angles and branches are means over tokens that are no padding and not massive."
)


def table(found: EffectiveDepth) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, one row for each block."""
    names, columns = ["block"], [[str(at + 1) for at in range(found.depth)]]

    def add(name: str, values: Tensor, digits: int = 3, sign: str = "") -> None:
        if not bool(values.isnan().all()):
            names.append(name)
            columns.append([_number(v, digits, sign) for v in values.tolist()])

    add("influence", found.rest.influence)
    add("angle", torch.diagonal(found.rest.angular, 1))
    if found.prices is not None:
        add("skip", found.prices.skip, sign="+")
        add("±", found.prices.error)
        add("swap", found.prices.swap, sign="+")
        add("no attn", found.prices.attention, sign="+")
        add("no ffn", found.prices.ffn, sign="+")
        if found.prices.score is not None:
            add("score", found.prices.score, sign="+")
    for name, size, cosine in zip(("attn", "ffn"), found.rest.size, found.rest.cosine, strict=True):
        add(name, size, 2)
        add("cos", cosine, 2, "+")
    if found.lens is not None:
        add("KL", found.lens.kl[1:], 2)
        add(f"top {found.lens.top}", found.lens.overlap[1:], 2)
        add("loss", found.lens.loss[1:], 2)
    return names, [list(row) for row in zip(*columns, strict=True)]


def _number(value: float, digits: int, sign: str) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:{sign}.{digits}f}" if abs(value) < 1000 else f"{value:{sign}.1e}"


def cheapest(found: EffectiveDepth) -> list[int]:
    """The rows of the blocks of least price, of which the verdict speaks."""
    return found.prices.skip.nan_to_num(math.inf).argsort()[:CHEAPEST].tolist() if found.prices is not None else []


def curves_table(found: EffectiveDepth) -> Grid:
    """The held-out loss after 1, 2, ... removals by every way to choose, and the blocks that are gone last."""
    most = max(len(curve.choices) for curve in found.curves)
    names = ["removed", *map(str, range(most + 1)), "blocks"]
    cells = [
        [curve.by, *(_number(v, 3, "") for v in curve.losses), numbered(curve.choices[-1])] for curve in found.curves
    ]
    return Grid(names, cells, left=1, fold={"blocks": 24})


def header(found: EffectiveDepth) -> str:
    tokens = int(found.plain.count)
    loss = f"; {found.prices.loss}: {found.prices.base:.3f}" if found.prices is not None else ""
    return (
        f"{found.depth} blocks of width {found.width}, {tokens} tokens that chose{loss}; tolerance {found.tolerance:g}"
    )


def remarks(found: EffectiveDepth) -> list[str]:
    said = list(found.notes)
    massive = found.plain.count - found.rest.count
    gap = (found.plain.influence - found.rest.influence).abs()
    if massive and float(gap.max()) > MASSIVE:
        block = int(gap.argmax())
        said.append(
            f"{massive:.0f} massive tokens are left out of the table: with them block {block + 1} has influence "
            f"{float(found.plain.influence[block]):.3f} and not {float(found.rest.influence[block]):.3f}"
        )
    return said


def sheets(found: EffectiveDepth) -> list[Sheet]:
    names, cells = table(found)
    styles = ["dim" if at + 1 in found.idle else "" for at in range(found.depth)]
    series = {"block influence": found.rest.influence.tolist()}
    if found.prices is not None:
        series["price of skipping"] = found.prices.skip.tolist()
    body: list[Part] = [
        Line(header(found), "dim"),
        Line(found.verdict, "bold"),
        Curves(series, "block"),
        Grid(names, cells, gap=1, styles=styles, seen=cheapest(found)),
    ]
    if found.curves:
        body += [Line("Loss on held-out inputs after removals", "bold"), curves_table(found)]
    return [
        Sheet(f"{found.model}: which blocks earn their place", [*body, Line(LEGEND, "dim"), *notes(remarks(found))])
    ]


def draw(found: EffectiveDepth, figure: Any) -> None:
    """Four panels: influence and price by block, angles by depth, effect on later blocks or the lens, drop curves."""
    (first, second), (third, fourth) = figure.subplots(2, 2)
    _influence(found, first)
    _angles(found, second, figure)
    if found.prices is not None:
        _effect(found, third, figure)
    elif found.lens is not None:
        _lens(found, third)
    else:
        _branches(found, third)
    if found.curves:
        _drops(found, fourth)
    elif found.lens is not None and found.prices is not None:
        _lens(found, fourth)
    elif found.lens is not None:
        _branches(found, fourth)
    else:
        _directions(found, fourth)
    figure.suptitle(f"{found.model}, {found.depth} blocks", fontsize=11)


def _influence(found: EffectiveDepth, ax: Any) -> None:
    places = list(range(1, found.depth + 1))
    ax.plot(places, found.rest.influence.tolist(), marker=".", color=COLOURS[0], label="block influence (left)")
    ax.set(xlabel="block", ylabel="block influence", yscale="log", xlim=(0.3, found.depth + 0.7))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(alpha=0.25)
    lines, labels = ax.get_legend_handles_labels()
    if found.prices is not None:
        right = ax.twinx()
        right.bar(
            places,
            found.prices.skip.tolist(),
            yerr=found.prices.error.tolist(),
            color=COLOURS[1],
            alpha=0.45,
            error_kw={"ecolor": "0.45", "elinewidth": 0.8},
            label="price, ± standard error (right)",
        )
        right.set_yscale("symlog", linthresh=max(found.tolerance, 1e-6))
        right.set_ylabel(f"price{_unit(found)}")
        right.axhline(found.tolerance, color="0.3", lw=0.8, ls=":", label=f"tolerance {found.tolerance:g}")
        more = right.get_legend_handles_labels()
        lines, labels = lines + more[0], labels + more[1]
        ax.set_zorder(right.get_zorder() + 1)  # the curve before the bars
        ax.patch.set_visible(False)
    ax.legend(lines, labels, **BELOW, ncols=3)
    priced = ", and price: change of the loss without the block" if found.prices is not None else ""
    ax.set_title(f"block influence{priced}", fontsize=10)


def _unit(found: EffectiveDepth) -> str:
    return ", nats" if found.prices is not None and found.prices.in_nats else ""


def _angles(found: EffectiveDepth, ax: Any, figure: Any) -> None:
    """As Gromov et al. draw it: blocks to the right, numbers of removed blocks upwards; the lightest stretch goes."""
    depth = found.depth
    grid = torch.full((depth, depth), torch.nan, dtype=torch.float64)
    for count in range(1, depth + 1):
        values = torch.diagonal(found.rest.angular, count)
        grid[count - 1, : len(values)] = values
    shown = ax.imshow(
        grid.numpy(), origin="lower", aspect="auto", extent=(0.5, depth + 0.5, 0.5, depth + 0.5), cmap="viridis_r"
    )
    best = [int(torch.diagonal(found.rest.angular, count).argmin()) + 1 for count in range(1, depth)]
    ax.plot(best, range(1, depth), ".", color=COLOURS[0], ms=4, label="least angle of all stretches of this length")
    ax.set(xlabel="first block", ylabel="blocks in the stretch")
    ax.legend(**BELOW)
    ax.set_title("angle between the two ends of a stretch, in half turns", fontsize=10)
    figure.colorbar(shown, ax=ax)


def _effect(found: EffectiveDepth, ax: Any, figure: Any) -> None:
    """As Csordas et al. draw it: does anyone downstream read what the block wrote?"""
    assert found.prices is not None
    depth = found.depth
    above = torch.ones(depth, depth).triu(1).bool()
    grid = found.prices.effect.masked_fill(~above, torch.nan)
    ends = (0.5, depth + 0.5, 0.5, depth + 0.5)
    shown = ax.imshow(grid.numpy(), origin="lower", aspect="auto", extent=ends, cmap="magma_r", vmin=0, vmax=1)
    ax.set(xlabel="later block", ylabel="block that is skipped")
    ax.set_title("relative change of what later blocks add", fontsize=10)
    figure.colorbar(shown, ax=ax, extend="max")


def _lens(found: EffectiveDepth, ax: Any) -> None:
    assert found.lens is not None
    ax.plot(found.lens.kl.tolist(), marker=".", color=COLOURS[1], label="KL to the final distribution, nats (left)")
    ax.set(xlabel="block")
    right = ax.twinx()
    right.plot(
        found.lens.overlap.tolist(), marker=".", color=COLOURS[2], label=f"overlap of the top {found.lens.top} (right)"
    )
    right.set_ylim(0, 1.05)
    pairs = [one.get_legend_handles_labels() for one in (ax, right)]
    ax.legend(pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1], fontsize=8, frameon=False)
    ax.grid(alpha=0.25)
    ax.set_title("the model's own head after every block", fontsize=10)


def _branches(found: EffectiveDepth, ax: Any) -> None:
    _of_branches(found.rest.size, ax)
    ax.set_title("|branch| / |stream|", fontsize=10)


def _directions(found: EffectiveDepth, ax: Any) -> None:
    _of_branches(found.rest.cosine, ax)
    ax.axhline(0.0, color="0.5", lw=0.8, ls=":")
    ax.set_title("cos(branch, stream): 0 writes, above strengthens, below erases", fontsize=10)


def _of_branches(values: Tensor, ax: Any) -> None:
    places = list(range(1, values.shape[-1] + 1))
    for name, colour, one in zip(("attention", "ffn"), COLOURS[1:], values, strict=False):
        ax.plot(places, one.tolist(), marker=".", color=colour, label=name)
    ax.set(xlabel="block")
    ax.legend(fontsize=8, frameon=False)
    ax.grid(alpha=0.25)


def _drops(found: EffectiveDepth, ax: Any) -> None:
    for colour, style, curve in zip(COLOURS, STYLES, found.curves, strict=False):
        ax.plot(curve.losses, marker=".", color=colour, ls=style, label=curve.by)
    ax.set(xlabel="blocks removed", ylabel=f"held-out loss{_unit(found)}")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(fontsize=8, frameon=False)
    ax.grid(alpha=0.25)
    ax.set_title("drop curves, on inputs that did not choose", fontsize=10)
