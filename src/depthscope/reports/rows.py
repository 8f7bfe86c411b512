"""The rows that every table of a scan shows, in the terminal and in HTML alike."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from depthscope.registry import TABLES
from depthscope.reports.chart import sampled
from depthscope.scans.evidence import DISAGREE
from depthscope.scans.record import Scan
from depthscope.scans.verdict import floor_of
from depthscope.traces.streams import ALONE

CERTAIN = ("t_sim", "t_div", "delta", "lambda_2")  # quantities whose standard errors are shown


def called(scan: Scan) -> str:
    """The title of a scan, with the name of its stream where the model has several."""
    return scan.title if scan.stream == ALONE else " + ".join([f"{scan.model}, {scan.stream}", *scan.remedies])


def all_streams(scan: Scan) -> str:
    """One line: how many streams a model has, and which is the main one."""
    others = ", ".join(f"{name} ({one.depth} blocks)" for name, one in scan.others.items())
    return f"{len(scan.streams)} streams: {scan.stream} ({scan.depth} blocks) is the main one; {others} below"


def header(scan: Scan) -> str:
    """One line: what was scanned."""
    norm = {"unknown": "norm placement unknown", "none": "no norms"}.get(scan.placement, f"{scan.placement}-norm")
    if scan.placement.startswith("mixed"):
        norm = f"norms {scan.placement}"
    scale = f", residual x {scan.residual_scale:.3g}" if scan.residual_scale != 1 else ""
    causal = {True: ", causal", False: ", not causal", None: ""}[scan.causal]
    mode = "train" if scan.training else "eval"
    stages = [size for i, size in enumerate(scan.sizes) if not i or size != scan.sizes[i - 1]]
    stages = stages or [[scan.tokens, scan.width]]
    tokens, width = (" then ".join(str(size) for size in column) for column in zip(*stages, strict=True))
    return (
        f"{scan.depth} blocks {scan.blocks} ({norm}{scale}{causal}), {scan.samples} x {tokens} tokens of width "
        f"{width}, {scan.dtype}, {mode}"
    )


def over_batches(scan: Scan) -> str:
    """One line: how far the means may be off, by their standard errors over batches; nothing for one batch."""
    largest = {name: scan.errors[name].nan_to_num(0.0).max().item() for name in CERTAIN if name in scan.errors}
    if not largest:
        return ""
    said = ", ".join(f"{name} {value:.2g}" for name, value in largest.items())
    return f"means over {scan.batches} batches; largest standard error over blocks: {said}"


def table(scan: Scan, most: int = 13, without: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Column names and cells, a few blocks from the first to the last. without: columns that are left out."""
    names, rows = columns(scan)
    kept = [k for k, name in enumerate(names) if name not in without]
    sized = 3 if scan.sizes else 1  # columns of whole numbers

    def cell(k: int, block: int) -> str:
        value = rows[block][k]
        return str(value) if k < sized or isinstance(value, str) else _cell(float(value), block)

    return [names[k] for k in kept], [[cell(k, i) for k in kept] for i in sampled(scan.depth + 1, most)]


def columns(scan: Scan) -> tuple[list[str], list[list[float | int | str]]]:
    """Column names and numbers, a row for every state; - where the mean token is zero and nothing multiplies it."""
    found: dict[str, list[Any]] = {"t_sim": scan.states["t_sim"].tolist(), "t_div": scan.states["t_div"].tolist()}
    found |= {name: values.tolist() for name, values in hidden(scan).items()}
    if "t_cos" in scan.states:
        found["t_cos"] = scan.states["t_cos"].tolist()
    for step in scan.step_names:
        row = scan.steps[step]
        if "xi_1" in row and not step.endswith("_norm") and step != "other":
            found[f"x {step}".replace("attention", "attn")] = ["", *(row["xi_1"] / row["xi_2"]).tolist()]
    for name in ("delta", "lambda_2", "omega", "attention_entropy"):
        if name in scan.heads:
            found[name.removeprefix("attention_")] = ["", *scan[name].tolist()]
    if "gradient_norm" in scan.gradients:
        found["gradient"] = ["", *scan.gradients["gradient_norm"].tolist()]
    floor = floor_of(scan.dtype)
    means = scan.states["t_sim"].tolist()
    centred = [False, *(means[i] < floor for i in range(scan.depth))]  # the input of block i + 1 has no mean

    def value(name: str, block: int) -> float | str:
        growth = name.startswith("x ") or name == "omega"
        return "-" if growth and centred[block] else found[name][block]

    names = ["block", "n", "d"] if scan.sizes else ["block"]
    sizes = [[i, *(scan.sizes[i] if scan.sizes else [])] for i in range(scan.depth + 1)]
    return [*names, *found], [[*sizes[i], *(value(name, i) for name in found)] for i in range(scan.depth + 1)]


def hidden(scan: Scan) -> dict[str, Tensor]:
    """What t_sim and t_div do not show: the tokens without the massive ones, and without outliers where they differ."""
    found = {}
    if scan.massive:
        found["rest"] = 1 - scan.states["t_div_rest"]
    if "t_div_core" in scan.states and scan.verdict.status != "not a number":
        rest = float(scan.states["t_div_rest"][-1])
        if scan.verdict.diversity < rest / DISAGREE or scan.verdict.diversity > rest * DISAGREE:
            found["core"] = scan.states["t_div_core"]
    return found


def massive_at(scan: Scan, block: int) -> str:
    """The massive tokens of one state: 0 x173, the largest first."""
    here = sorted((one for one in scan.massive if one.block == block), key=lambda one: -one.times * one.sequences)
    named = [f"{one.position} x{one.times:.0f}" for one in here[:2]]
    return ", ".join([*named, f"+{len(here) - 2}"] if len(here) > 2 else named)


def massive_tokens(scan: Scan, most: int = 13) -> str:
    """One line: the massive tokens at the blocks of the table. A column of its own would leave numbers no room."""
    named = {i: massive_at(scan, i) for i in sampled(scan.depth + 1, most)}
    return "; ".join(f"{f'block {i}' if i else 'input'}: {words}" for i, words in named.items() if words)


def by_position(scan: Scan) -> tuple[list[str], list[list[str]], str]:
    """Column names, cells, legend: ranges of positions, a decoder's first token, metrics that are measured only when
    asked for; at quarters of the depth."""
    rows = {name: values for name, values in scan.states.items() if "[" in name}
    legend = [RANGES] if rows else []
    asked = [name for name in scan.states if name in TABLES["metric"] and not TABLES["metric"][name].facts.default]
    rows |= {name: scan.states[name] for name in asked}  # by name: they have no column above
    if scan.causal and {"first_token_similarity", "sink_mass"} <= {*scan.keys()}:
        rows |= {name: scan[name] for name in ("first_token_similarity", "sink_mass", "sink_chance")}
        legend.append(FIRST)
    blocks = sorted({round(quarter * scan.depth / 4) for quarter in range(5)})

    def cell(values: Tensor, block: int) -> str:
        row = block + len(values) - scan.depth - 1  # quantities of heads have no value at block 0
        return _cell(float(values[row]), block) if row >= 0 else ""

    cells = [[name, *(cell(values, block) for block in blocks)] for name, values in rows.items()]
    return ["at block", *map(str, blocks)], cells, " ".join(legend)


def side_by_side(before: Scan, after: Scan, most: int = 13) -> tuple[list[str], list[list[str]]]:
    """t_sim and t_div of two scans of one model, a few blocks from the first to the last."""
    columns = {
        f"{name} {when}": scan.states[name].tolist()
        for name in ("t_sim", "t_div")
        for when, scan in (("before", before), ("after", after))
    }
    blocks = sampled(min(before.depth, after.depth) + 1, most)
    return ["block", *columns], [[str(i), *(_cell(values[i], i) for values in columns.values())] for i in blocks]


def _cell(value: float, block: int) -> str:
    if math.isnan(value):
        return "" if block == 0 else "nan"
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.3f}"
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


REST = (
    "rest: t_sim without massive tokens, whose norm is over 5 times the median and which decide t_sim; core: t_div "
    "without outliers and shared massive channels."
)
RANGES = (
    "t_sim[0:16]: of the first 16 tokens, t_sim[1/4]: of the first quarter; m unrelated tokens have t_sim 1 / m, so "
    "compare ranges of one length."
)
FIRST = (
    "first_token_similarity: share of the later tokens that lies along the first (1 = all on its line); sink_mass: "
    "attention that later tokens give to the first, sink_chance: what it would get if all were looked at alike."
)
SIZES = "n, d: tokens and width of the state."
LEGEND = (
    "t_sim: share of the signal that all tokens have in common (1 = all alike); t_div = 1 - t_sim; x attn, x ffn, "
    "x remedy: that step multiplies t_sim / t_div by this; delta, lambda_2: what attention keeps of differences "
    "(0 = none); omega: how far it moves the mean token (-: the mean token is zero)."
)
