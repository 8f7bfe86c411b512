"""The sentences of a verdict: what was found, which quantities disagree, and why."""

import math
from typing import TYPE_CHECKING

from torch import Tensor

from depthscope.scans.evidence import DISAGREE, Evidence
from depthscope.scans.exceptions import Massive

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

HIDDEN = 0.05  # of t_sim: what massive tokens hide, if it is to be said
FAR = 1e3  # a ratio of gradients that is worth a sentence


def how_lost(found: Evidence, chosen: Tensor, start: int, pace: float) -> str:
    """In what way the tokens of the chosen sequences are lost, from block `start` on."""
    end = float(found.value[-1, chosen].mean())
    if found.same[-1, chosen].float().mean() >= 0.5:
        slope = f", divided by {pace:.2f} a block on the way there" if start and pace > 1 else ""
        return (
            f"from block {start} on less than 1 % of the signal differs between tokens (token diversity t_div "
            f"{end:.2g} at block {len(found.value) - 1}{slope})."
        )
    if found.on_a_line[-1, chosen].float().mean() >= 0.5:
        rank = float(found.rank[-1, chosen].median())
        return f"from block {start} on tokens differ along one line only ({rank:.2f} directions)."
    share = float(found.points[-1, chosen].mean())
    return f"from block {start} on {share:.0%} of the tokens sit in at most four points."


def all_the_same(found: Evidence, chosen: Tensor, floor: int, dtype: str) -> str:
    """Whose tokens are the same up to rounding, from block `floor` on."""
    others = "" if found.value[-1].equal(found.t_div[-1]) else " (except outliers and massive ones)"
    end = float(found.value[-1, chosen].mean())
    return f"all tokens{others} are the same from block {floor} on, as far as {dtype} can tell (t_div {end:.1e})"


def alike_within(found: Evidence) -> str:
    """Tokens that carry the answer of their sequence."""
    return (
        f"tokens of one sequence are alike, on a line or in a few points (t_div {float(found.value[-1].mean()):.2g}), "
        f"but sequences differ (t_div of their means {float(found.apart[-1, 0]):.2g}), as after pooling"
    )


def directions_left(found: Evidence) -> str:
    """In how few directions tokens differ."""
    first, last = (float(found.rank[block].median()) for block in (0, -1))
    return (
        f"What differs between tokens lies along {last:.1f} directions, of {first:.0f} at the start (t_div "
        f"{float(found.value[-1].mean()):.2g})"
    )


def sequences(chosen: Tensor) -> str:
    """Which part of the sequences a sentence is about; nothing when it is all of them."""
    count = int(chosen.sum())
    return "" if count == len(chosen) else f"in {count} of {len(chosen)} sequences "


def why_they_disagree(scan: "Scan", found: Evidence) -> str:
    """Which quantities disagree, and why: one sentence for each cause, none where all agree."""
    causes = [massive_words(scan, found)]
    raw, rest, core = (float(curve[-1].median()) for curve in (found.t_div, found.rest, found.core))
    if float(found.value[-1].median()) != rest and core < rest:
        share = float(found.share[-1].median())
        what = f"that {share:.0%} are the same" if share > 0.5 else "how alike these are"
        causes.append(
            f"A few tokens differ from all the others and hide {what}: t_div is {rest:.2g} with them "
            f"and {core:.2g} without."
        )
    elif float(found.value[-1].median()) != rest:
        causes.append(
            f"A few channels that all tokens share are far larger than the others (a common offset) and hide what "
            f"differs beside them: t_div is {rest:.2g} with these channels and {core:.2g} without."
        )
    elif raw < rest / DISAGREE and not causes[0]:
        causes.append(f"t_div is {raw:.2g} with the largest tokens and {rest:.2g} without.")
    return "".join(f" {cause}" for cause in causes if cause)


def massive_words(scan: "Scan", found: Evidence) -> str:
    """Who the massive tokens are, and what they hide; empty where there are none."""
    if not scan.massive:
        return ""
    with_them, without = found.t_div.mean(-1), found.rest.mean(-1)
    apart = (with_them - without).abs().nan_to_num(0.0)
    block = int(apart.argmax())  # where they hide most
    ratio = float((with_them[-1] / without[-1]).log().abs().nan_to_num(0.0))
    if float(apart[block]) < HIDDEN and ratio < math.log(DISAGREE):
        return f"{who_is_massive(scan.massive, scan.samples)}, and does not hide the others."
    largest = max(scan.massive, key=lambda one: one.times * one.sequences)
    grown = f", {_similar(without, largest.block)} after block {largest.block}" if largest.block < block else ""
    return (
        f"{who_is_massive(scan.massive, scan.samples)}, and hides the others: after block {block} t_sim is "
        f"{_similar(with_them, block)} with it and {_similar(without, block)} without{grown} (t_div "
        f"{float(with_them[block]):.2g} and {float(without[block]):.2g})."
    )


def _similar(t_div: Tensor, block: int) -> str:
    return f"{1 - float(t_div[block]):.2f}"


def who_is_massive(massive: list[Massive], samples: int) -> str:
    """Token 0 is up to 169 times larger than the median token (between blocks 12 and 29)."""
    places: dict[int, list[Massive]] = {}
    for one in massive:
        places.setdefault(one.position, []).append(one)
    ranked = sorted(places.values(), key=lambda those: -max(one.times * one.sequences for one in those))
    top, others = ranked[0], len(ranked) - 1
    blocks = [one.block for one in top]
    span = f"after block {blocks[0]}" if len(blocks) == 1 else f"between blocks {blocks[0]} and {blocks[-1]}"
    most = max(one.sequences for one in top)
    part = "" if most == samples else f" of {most} of {samples} sequences"
    also = f", as are tokens at {others} other position{'s' * (others > 1)} in some block" if others else ""
    times = max(one.times for one in top)
    return f"Token {top[0].position}{part} is up to {times:.0f} times larger than the median token ({span}){also}"


def gradient_words(scan: "Scan") -> str:
    """How far gradients come back, where they were measured and that is far too little or too much."""
    norms = scan.gradients.get("gradient_norm")
    if norms is None or not norms.isfinite().all() or float(norms[-1]) == 0 or len(norms) < 2:
        return ""
    ratio = float(norms[0] / norms[-1])
    if 1 / FAR < ratio < FAR:
        return ""
    return f" The weights of block 1 get {ratio:.1g} times the gradient of the last block's."
