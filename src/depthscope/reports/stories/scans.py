"""The story of scans: how alike tokens are over depth, before and after, which step and which heads make them so."""

import math
from collections.abc import Mapping

from depthscope.forecasts.record import Forecast
from depthscope.reports.rows import (
    LEGEND,
    REST,
    SIZES,
    by_position,
    called,
    columns,
    header,
    hidden,
    massive_tokens,
    over_batches,
)
from depthscope.reports.stories.by_sheets import value_of
from depthscope.reports.stories.fixes import what_to_do
from depthscope.reports.stories.forecasts import ahead
from depthscope.reports.story import PALETTE, Chart, Facts, Heat, Part, Story, Table, Tone, Trace, Words, curve, notes
from depthscope.scans.record import Scan
from depthscope.scans.verdict import floor_of
from depthscope.traces.streams import ALONE

TONES: dict[str, Tone] = {"diverse": "good", "escalating": "warn"}
EXPLAINED = 4  # scans whose steps and heads are drawn; a page of more would be a wall of charts
STEPS = "Above 0 a step makes tokens more alike, below 0 it sets them apart. Steps of one block add up."
GAP = (
    "1 - |lambda_2| of each head's attention: near 1 one pass of the head leaves nothing of what differs between "
    "tokens, near 0 it keeps them apart."
)


def story(record: Scan) -> Story:
    return told_together({"": record})


def told_together(scans: Mapping[str, Scan], forecasts: Mapping[str, Forecast] | None = None) -> Story:
    """One story of all scans by their labels; a scan with `before` is two. forecasts: dashed beside measured curves."""
    sides = _sides(scans)
    last = [*sides.values()][-1]
    title = " and ".join(dict.fromkeys(scan.model for scan in sides.values()))
    if len(sides) == 1:
        title = called(last)
    explained = dict([*sides.items()][:EXPLAINED])
    return Story(
        kind=_kind(scans, sides),
        title=title,
        records={f"scan-{label or 'record'}": scan for label, scan in scans.items()},
        status=last.verdict.status,
        tone=tone_of(last),
        verdict=[_verdict(label, scan) for label, scan in sides.items()],
        where=[similarity(sides, forecasts or {}), diversity(sides, forecasts or {})],
        why=[part for label, scan in explained.items() for part in _why(label, scan)],
        todo=what_to_do(sides),
        evidence=[*_side_by_side(sides), *(part for label, scan in sides.items() for part in _tables(label, scan))],
        how=[part for label, scan in sides.items() for part in _how(label, scan)],
    )


def _kind(scans: Mapping[str, Scan], sides: Mapping[str, Scan]) -> str:
    first = next(iter(scans.values()))
    if len(scans) == 1 and first.before is not None:
        return f"before and after {', '.join(first.remedies) or 'a change'}"
    return "scan" if len(sides) == 1 else f"{len(sides)} scans together"


def tone_of(scan: Scan) -> Tone:
    return TONES.get(scan.verdict.status, "bad")


def _sides(scans: Mapping[str, Scan]) -> dict[str, Scan]:
    """Every stream of every scan by a label of its own, before its remedy and after."""
    found: dict[str, Scan] = {}
    for label, scan in scans.items():
        pair = (
            {label: scan}
            if scan.before is None
            else {_named(label, "before"): scan.before, _named(label, "after"): scan}
        )
        for name, one in pair.items():
            for stream, part in one.streams.items():
                found[_named(name, "" if stream == ALONE else stream)] = part
    return found


def _named(label: str, more: str) -> str:
    return ", ".join(word for word in (label, more) if word)


def _verdict(label: str, scan: Scan) -> Words:
    return Words(scan.verdict.text, "lead", scan.verdict.status, tone_of(scan), label)


def similarity(scans: Mapping[str, Scan], forecasts: Mapping[str, Forecast]) -> Chart:
    """t_sim of all; the cosine and what massive tokens hide beside it."""
    traces: list[Trace] = []
    for i, (label, scan) in enumerate(scans.items()):
        colour = i % PALETTE
        traces.append(curve(_of("t_sim", label), scan.states["t_sim"].tolist(), colour=colour))
        if scan.massive:
            rest = (1 - scan.states["t_div_rest"]).tolist()
            traces.append(curve(_of("t_sim without massive tokens", label), rest, line="dot", colour=colour))
        if "t_cos" in scan.states:
            cosine = scan.states["t_cos"].tolist()
            traces.append(curve(_of("t_cos, mean cosine", label), cosine, line="dash", colour=colour, hidden=True))
    for i, (label, one) in enumerate(forecasts.items(), start=len(scans)):
        traces.append(ahead(one, "t_sim", _of("t_sim forecast", label), i % PALETTE))
    says = "Share of the signal that all tokens have in common. At 1 they are all alike."
    return Chart("Token similarity over depth", traces, says, y="t_sim", low=0, high=1)


def diversity(scans: Mapping[str, Scan], forecasts: Mapping[str, Forecast]) -> Chart:
    """t_div of all on a log scale, with the floor of the numbers where a curve comes near it."""
    traces: list[Trace] = []
    for i, (label, scan) in enumerate(scans.items()):
        colour = i % PALETTE
        traces.append(curve(_of("t_div", label), scan.states["t_div"].tolist(), colour=colour))
        if scan.massive:
            rest = scan.states["t_div_rest"].tolist()
            traces.append(curve(_of("t_div without massive tokens", label), rest, line="dot", colour=colour))
        if "core" in hidden(scan):
            core = scan.states["t_div_core"].tolist()
            traces.append(curve(_of("t_div without outliers", label), core, line="dash", colour=colour))
    for i, (label, one) in enumerate(forecasts.items(), start=len(scans)):
        traces.append(ahead(one, "t_div", _of("t_div forecast", label), i % PALETTE))
    low = min(float(scan.states["t_div"].nan_to_num(1.0).min()) for scan in scans.values())
    dtype = next(iter(scans.values())).dtype
    marks = {"1 %: tokens count as lost": 0.01}
    if low < 1e3 * floor_of(dtype):
        marks[f"floor of {dtype}: rounding below"] = floor_of(dtype)
    says = "What still differs between tokens: 1 - t_sim. A straight line down is loss by a factor in every block."
    return Chart("Token diversity over depth", traces, says, y="t_div", log=True, marks=marks)


def _of(what: str, label: str) -> str:
    return f"{what}, {label}" if label else what


def _why(label: str, scan: Scan) -> list[Part]:
    parts: list[Part] = []
    if scan.verdict.driver and scan.verdict.driver in scan.verdict.text:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in scan.verdict.shares.items())
        parts.append(
            Words(f"Driven by {scan.verdict.driver}. Growth of similarity by kind of step: {shares}.", label=label)
        )
    steps = {name: row["gain"].tolist() for name, row in scan.steps.items() if name != "block" and "gain" in row}
    if steps:
        bars = [curve(name, values, 1, colour=i % PALETTE) for i, (name, values) in enumerate(steps.items())]
        title = _of("What each step adds to log(t_sim / t_div)", label)
        parts.append(Chart(title, bars, STEPS, y="log growth", bars=True, switch=False))
    gaps = _gaps(scan)
    if gaps is not None:
        parts.append(Heat(_of("Heads by spectral gap", label), *gaps, says=GAP, unit="gap", low=0, high=1))
    return parts


def _gaps(scan: Scan) -> tuple[list[list[float]], list[int], list[int]] | None:
    """Spectral gaps (heads, blocks), the numbers of heads and of blocks; None where no head was measured."""
    if "lambda_2" not in scan.heads or not max(scan.head_counts, default=0):
        return None
    gaps = (1 - scan.heads["lambda_2"].abs()).T
    return gaps.tolist(), [*range(1, len(gaps) + 1)], [*range(1, scan.depth + 1)]


def _side_by_side(scans: Mapping[str, Scan]) -> list[Part]:
    if len(scans) < 2:
        return []
    deepest = max(scan.depth for scan in scans.values())
    names = [f"{what} {label}" for what in ("t_sim", "t_div") for label in scans]
    curves = [scan.states[what].tolist() for what in ("t_sim", "t_div") for scan in scans.values()]
    rows = [[i, *(one[i] if i < len(one) else "" for one in curves)] for i in range(deepest + 1)]
    return [Table("Side by side, block by block", ["block", *names], rows)]


def _tables(label: str, scan: Scan) -> list[Part]:
    names, cells = columns(scan)
    legend = " ".join([SIZES] * bool(scan.sizes) + [LEGEND] + [REST] * bool(hidden(scan)))
    parts: list[Part] = [Table(_of("All blocks", label), names, cells, about=legend)]
    names, words, below = by_position(scan)
    if words:
        rows = [[row[0], *map(value_of, row[1:])] for row in words]
        parts.append(Table(_of("By position, and what was asked for", label), names, rows, left=1, about=below))
    if massive := massive_tokens(scan):
        parts.append(Words(f"Massive tokens, position x how many times the median: {massive}", label=label))
    return parts


def _how(label: str, scan: Scan) -> list[Part]:
    errors = over_batches(scan)
    facts = {
        "model": called(scan),
        "what ran": header(scan),
        "blocks": f"{scan.depth}, {scan.blocks}",
        "inputs": f"{scan.samples} sequences in {scan.batches} batch{'es' if scan.batches > 1 else ''}, "
        f"{scan.valid_tokens:g} of {scan.tokens} tokens are no padding (mean)",
        "numbers": f"computed in {scan.dtype}, summed in float64",
        "quantities": ", ".join(scan.keys()),
    }
    if errors:
        facts["certainty"] = errors
    worst = {name: value for name, value in scan.residuals.items() if not math.isnan(value)}
    if worst:
        facts["error of head statistics"] = ", ".join(f"{name} {value:.1g}" for name, value in worst.items())
    return [*([Words(label, "lead")] if label else []), Facts(facts), *notes(scan.notes)]
