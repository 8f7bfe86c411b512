"""Paths for the terminal and as a picture: how many there are of each length, and what they contribute."""

import math
from typing import Any

from depthscope.circuits.path_lengths import FORMS, ROUNDING, PathLengths
from depthscope.reports.chart import COLOURS, sampled
from depthscope.reports.sheet import Grid, Line, Part, Sheet
from depthscope.theory.path_counts import MODELS, PathCounts, path_counts

SIZE = (11, 3.8)
RED, BLUE, GREEN = COLOURS[:3]
LEGEND = (
    "length: attentions that a path goes through, the others it skips. paths: how many there are, and their part of "
    "all. share: of the output, along the output; they sum to 1 with that of the constant: biases, and all else that "
    "does not come from the tokens that enter block 1. size: norm relative to the output's. residual: relative "
    "residual, 0 when a part is the same for all tokens (collapse, rank one)."
)
DRAWN = (
    "size and residual of one path: mean over those drawn, with its standard error. together: the size of the sum of "
    "all paths of this length over the sum of their sizes, 1 when they all pull together."
)


def sheets(found: PathLengths) -> list[Sheet]:
    drawn: list[Part] = []
    if found.drawn:
        drawn = [Line("single paths, drawn at random", "bold"), Grid(*drawn_rows(found)), Line(DRAWN, "dim")]
    body: list[Part] = [
        Line(f"{found.depth} blocks, {_heads(found.heads)}, {found.samples} x {found.tokens} tokens", "dim"),
        Line(f"of {FORMS[found.form]}", "dim"),
        Line(found.verdict, "bold"),
        Grid(*rows(found)),
        Line(LEGEND, "dim"),
        *drawn,
        Line(checks(found)),
    ]
    return [Sheet(f"paths: {found.model}", body)]


def checks(found: PathLengths) -> str:
    """How far lengths pull together, and how exact all this is."""
    said = f"Lengths pull together by {found.alignment:.0%} (|sum| over the sum of sizes). "
    said += f"All lengths together miss the output by {found.error:.0e} of its size."
    if found.form == "attention":
        return said
    missed = "all" if found.response_error > 1 else f"{found.response_error:.0%}"
    return said + (
        f" The frozen model is exact on these inputs alone: when its tokens change by 1%, it misses {missed} of "
        "the change, because attention and norms react too."
    )


def rows(found: PathLengths, most: int = 25) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, one row for each length; in deep models some of them."""
    names = ["length", "paths", "of all", "share", "size", "cosine", "residual"]
    counts = found.counts
    cells = []
    for k in sampled(found.depth + 1, most):
        row = [str(k), count(float(counts.log10_counts[k])), portion(float(counts.log10_shares[k]))]
        size = float(found.norm[k])
        row += [percent(float(found.share[k])), f"{size:.2g}"]
        residual = alike(float(found.residual[k]), float(found.residual_floor[k]))
        row += [f"{float(found.cosine[k]):.2f}", residual] if size > found.floor else ["-", "-"]
        cells.append(row)
    if found.form != "attention":
        cells.append(["constant", "", "", percent(found.constant), f"{found.constant_norm:.2g}", "", ""])
    cells.append(["all", count(counts.log10_total), "100%", "100%", "1", "1.00", alike(found.output_residual)])
    return names, cells


def drawn_rows(found: PathLengths) -> tuple[list[str], list[list[str]]]:
    """The same of single paths: sizes, relative residuals, and how far they pull together."""
    cells = []
    for k in sampled(found.depth + 1, 25):
        size, size_error, residual, error, together = (
            float(found.drawn[name][k])
            for name in ("log10_norm", "log10_norm_error", "residual", "residual_error", "alignment")
        )
        spread = f"±{error:.0e}" if error and residual > ROUNDING else ""
        cells.append([str(k), f"10^{size:.2f}±{size_error:.2f}", alike(residual) + spread, f"{together:.2g}"])
    return ["length", "size", "residual", "together"], cells


def alike(residual: float, floor: float = ROUNDING) -> str:
    """A relative residual; below the floor only that it is below."""
    return f"{residual:.2g}" if residual > floor else "0 (rounding)" if floor <= ROUNDING else f"< {floor:.1g}"


def count(log10: float) -> str:
    """How many there are, in words that fit a column."""
    return "none" if log10 == -math.inf else f"{10**log10:.0f}" if log10 < 6 else f"10^{log10:.1f}"


def percent(share: float) -> str:
    return f"{share:.1%}".replace("-0.0%", "0.0%")


def portion(log10: float) -> str:
    """A part of all paths, which may be tiny."""
    return f"{10**log10:.1%}" if log10 >= -3 else f"10^{log10:.1f}"


def _heads(heads: list[int]) -> str:
    return f"{heads[0]} heads each" if len(set(heads)) == 1 else f"{min(heads)} to {max(heads)} heads"


def counts_sheet(counts: PathCounts) -> Sheet:
    """The paths of one design by length, and of the models that the paper lists."""
    likely = [k for k in range(counts.depth + 1) if float(counts.shares[k]) >= 1e-3] or [counts.depth]
    cells = [
        [str(k), count(float(counts.log10_counts[k])), portion(float(counts.log10_shares[k]))]
        for k in sorted({0, 1, counts.depth, *likely})
        if k <= counts.depth
    ]
    others = []
    for name, (depth, heads) in MODELS.items():
        own = path_counts(depth, heads)
        others.append([name, str(depth), str(heads), count(own.log10_total), f"{own.mean_length:.1f}"])
    words = (
        f"{counts.depth} blocks, {_heads(list(counts.heads))}: {count(counts.log10_total)} paths, of "
        f"{counts.mean_length:.1f} attentions on average. No model was run: this counts paths and does not weigh them."
    )
    body: list[Part] = [
        Line(words, "bold"),
        Grid(["length", "paths", "of all"], cells),
        Line("\nModels of the paper (Dong et al. 2021)", "bold"),
        Grid(["model", "blocks", "heads", "paths", "mean length"], others),
    ]
    return Sheet("paths", body)


def draw(found: PathLengths, figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    draw_shares(left, found)
    draw_sizes(right, found)
    figure.suptitle(f"{found.model}: {FORMS[found.form]}", fontsize=10)


def draw_shares(ax: Any, found: PathLengths) -> None:
    """What paths of each length are of all, and what they are of the output."""
    lengths = range(found.depth + 1)
    ax.bar(lengths, found.counts.shares.tolist(), color="0.8", label="part of all paths, by number")
    ax.plot(lengths, found.share, "o-", ms=3, color=RED, label="share of the output")
    ax.axhline(0, color="0.6", lw=0.8)
    ax.set(title="paths by length", xlabel="attentions on the path", ylabel="share")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.25)


def draw_sizes(ax: Any, found: PathLengths) -> None:
    """How large the parts are and how alike their tokens, on a log scale."""
    lengths = list(range(found.depth + 1))
    told = [k for k in lengths if float(found.norm[k]) > found.floor]  # the others are rounding
    apart = [k for k in told if found.form == "attention" or bool(found.residual[k] > found.residual_floor[k])]
    ax.semilogy(told, found.norm[told].tolist(), "o-", ms=3, color=BLUE, label="size relative to the output")
    ax.semilogy(apart, found.residual[apart].tolist(), "s-", ms=3, color=GREEN, label="relative residual")
    if found.drawn:
        one, residual, error = (found.drawn[k].tolist() for k in ("log10_norm", "residual", "residual_error"))
        ax.semilogy(lengths, [10**x for x in one], ":", color=BLUE, label="size of one path")
        ax.errorbar(lengths, residual, yerr=error, fmt="x", ms=4, color="0.4", label="relative residual of one path")
    if bool((found.residual[apart] < ROUNDING).any()):
        ax.axhline(ROUNDING, color="0.6", lw=0.8, ls="--", label="below: rounding")
    ax.set(title="size, and what differs between tokens", xlabel="attentions on the path")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.25)
