"""A spectrum for the terminal: which blocks make tokens alike, which keep them apart, and by how much."""

import math

from depthscope.circuits.spectrum_record import Spectrum
from depthscope.reports.chart import sampled
from depthscope.reports.sheet import Grid, Line, Part, Sheet, Words, notes
from depthscope.reports.spectrum_plots import draw as draw

SIZE = (12, 8.4)
WIDTH = 120
ROWS = 48
HEADER = [
    "block", "verdict", "margin", "apart", "weights", "lambda_H", "lambda_A", "heads",
    "least", "asym", "gamma<0", "hfc/lfc", "low f", "high f",
]  # fmt: skip
STYLE = {"smooth": "red", "sharpen": "blue", "neither": "yellow"}
LEGEND = (
    "margin: log growth, for each repetition, of what tokens have in common minus that of what differs between "
    "them; apart: the same with every head's own attention in place of their mean; weights: the same for tokens "
    "of size 1, a skip of weight 1 and without a norm's scale behind the sum. lambda_H, lambda_A: the pair that "
    "dominates. heads: how many smooth / sharpen, each on its own channels. least: least real part of attention's "
    "eigenvalues. asym: |H - H^T| / |H|. gamma<0: channels with a negative scale. hfc/lfc = sqrt(t_div / t_sim) after "
    "the block. low f, high f: energy after the block over before, in the lower and the upper half of frequencies "
    "above 0."
)


def sheets(spectrum: Spectrum) -> list[Sheet]:
    rows = [row(spectrum, block) for block in sampled(spectrum.depth, ROWS)]
    cells: list[list[Words]] = [[number, (word, STYLE[word]), *rest] for number, word, *rest in rows]
    body: list[Part] = [
        Line(header(spectrum), "dim"),
        *(Line(line, "bold" if i == 0 else "") for i, line in enumerate(in_words(spectrum))),
        Grid(HEADER, cells),
        Line(LEGEND, "dim"),
        *notes(spectrum.notes),
    ]
    return [Sheet(f"spectrum: {spectrum.model}", body)]


def header(spectrum: Spectrum) -> str:
    norms = "/".join(sorted(set(spectrum.placement)))
    return (
        f"{spectrum.depth} blocks of {spectrum.heads} heads, width {spectrum.width}, norms: {norms}; "
        f"{spectrum.samples} sequences of {spectrum.tokens} tokens; frequencies over {spectrum.frequencies}"
    )


def row(spectrum: Spectrum, block: int) -> list[str]:
    """One block in the order of HEADER."""
    own = spectrum.head_verdicts[block]
    low, high = halves(spectrum, block)
    return [
        str(block + 1),
        spectrum.verdicts[block],
        f"{float(spectrum.margin[block]):+.3f}",
        f"{float(spectrum.margin_apart[block]):+.3f}",
        f"{float(spectrum.margin_of_weights[block]):+.3f}",
        in_complex(complex(spectrum.lambda_H[block])),
        in_complex(complex(spectrum.lambda_A[block])),
        f"{own.count('smooth')}/{own.count('sharpen')}",
        f"{float(spectrum.lowest[block].nanmean()):.3f}",
        f"{float(spectrum.asymmetry[block]):.2f}",
        f"{float(spectrum.negative_scales[block]):.0%}",
        f"{float(spectrum.hfc_lfc[block + 1]):.3g}",
        f"{low:.2f}",
        f"{high:.2f}",
    ]


def halves(spectrum: Spectrum, block: int) -> tuple[float, float]:
    """Mean response in the lower and the upper half of the frequencies above 0."""
    above = spectrum.response[block, 1:]
    middle = max(1, len(above) // 2)
    return float(above[:middle].nanmean()), float(above[-middle:].nanmean())


def in_complex(value: complex) -> str:
    """1.2, or 1.2+0.3i; - where no one eigenvalue decides."""
    if math.isnan(value.real):
        return "-"
    if abs(value.imag) < 5e-3 * max(abs(value), 0.1):
        return f"{value.real:.2f}"
    return f"{value.real:.2f}{value.imag:+.2f}i"


def in_words(spectrum: Spectrum) -> list[str]:
    """The finding first, then what it rests on."""
    count = {word: spectrum.verdicts.count(word) for word in ("smooth", "sharpen", "neither")}
    parts = ", ".join(f"{number} {word}" for word, number in count.items() if number)
    lines = [f"Of {spectrum.depth} blocks {parts}. {_meaning(count)}"]
    weights, heads = spectrum.shares_of_weights, spectrum.head_shares
    lines.append(
        f"By weights alone (tokens of size 1, as in the paper): {weights['smooth']:.0%} smooth, "
        f"{weights['sharpen']:.0%} sharpen. Heads, each on its own channels: {heads['smooth']:.0%} smooth, "
        f"{heads['sharpen']:.0%} sharpen."
    )
    if bool(spectrum.ties.any()):
        tied = [str(i + 1) for i in spectrum.ties.nonzero().flatten().tolist()]
        lines.append(
            f"Ties in blocks {', '.join(tied[:8])}: several pairs dominate equally, so tokens do not end on one line."
        )
    if bool((spectrum.negative_scales > 0).any()):
        worst = int(spectrum.negative_scales.argmax())
        lines.append(
            f"Norms with negative scales, which change the sign of eigenvalues: "
            f"{int((spectrum.negative_scales > 0).sum())} "
            f"blocks, most in block {worst + 1} ({float(spectrum.negative_scales[worst]):.0%} of its channels)."
        )
    lines.append(
        "This is about attention and its skip alone, repeated with the same attention. Feed-forward networks and "
        "biases are left out. Smoothing alone is no fault: depthscope scan measures what the tokens really do."
    )
    return lines


def _meaning(count: dict[str, int]) -> str:
    if not count["smooth"] + count["sharpen"]:
        return "If such a block is repeated, what tokens share and what differs between them grow at the same rate."
    if count["smooth"] >= count["sharpen"] + count["neither"]:
        return "If a block that smooths is repeated, all tokens become alike (over-smoothing)."
    return "If a block that sharpens is repeated, tokens stay apart: what differs between them grows fastest."
