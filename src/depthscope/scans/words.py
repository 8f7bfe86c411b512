"""The sentences of a verdict: what was found, which quantities disagree, and why."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from depthscope.scans.evidence import DISAGREE, Evidence
from depthscope.scans.exceptions import Massive

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

NAMED = 3  # massive positions that a sentence names
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


def sequences(chosen: Tensor) -> str:
    """Which part of the sequences a sentence is about; nothing when it is all of them."""
    count = int(chosen.sum())
    return "" if count == len(chosen) else f"in {count} of {len(chosen)} sequences "


def why_they_disagree(scan: "Scan", found: Evidence) -> str:
    """Which quantities disagree, and why: one sentence for each cause, none where all agree."""
    causes = [massive_words(scan, found)]
    raw, rest, core = (float(curve[-1].median()) for curve in (found.t_div, found.rest, found.core))
    if float(found.value[-1].median()) != rest and core < rest:
        causes.append(
            f"A few tokens differ from all the others and hide that {float(found.share[-1].median()):.0%} are the same: "
            f"t_div is {rest:.2g} with them and {core:.2g} without."
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
    """Who the massive tokens are, and what they hide, at the block where that is most; empty where there are none."""
    if not scan.massive:
        return ""
    with_them, without = found.t_div.mean(-1), found.rest.mean(-1)
    hidden = (with_them.log() - without.log()).abs().maximum(((1 - with_them).log() - (1 - without).log()).abs())
    block = int(hidden.nan_to_num(0.0, posinf=0.0).argmax())
    if float(hidden[block]) < torch.tensor(DISAGREE).log():
        return ""
    return (
        f"{who_is_massive(scan.massive, scan.samples)} and hides the others: after block {block} t_sim is "
        f"{1 - float(with_them[block]):.2f} with it and {1 - float(without[block]):.2f} without (t_div "
        f"{float(with_them[block]):.2g} and {float(without[block]):.2g})."
    )


def who_is_massive(massive: list[Massive], samples: int) -> str:
    """Token 0 is up to 185 times larger than the others (blocks 12 to 29)."""
    places: dict[int, list[Massive]] = {}
    for one in massive:
        places.setdefault(one.position, []).append(one)
    ranked = sorted(places.items(), key=lambda item: -max(one.times * one.sequences for one in item[1]))
    position, top = ranked[0]
    blocks = [one.block for one in top]
    span = f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {blocks[0]} to {blocks[-1]}"
    most = max(one.sequences for one in top)
    part = "" if most == samples else f" of {most} of {samples} sequences"
    more = len(ranked) - 1
    also = f", as {'is' if more == 1 else 'are'} {more} other{'s' if more > 1 else ''} somewhere," if more else ""
    times = max(one.times for one in top)
    return f"Token {position}{part} is up to {times:.0f} times larger than the median token (after {span}){also}"


def gradient_words(scan: "Scan") -> str:
    """How far gradients come back, where they were measured and that is far too little or too much."""
    norms = scan.gradients.get("gradient_norm")
    if norms is None or not norms.isfinite().all() or float(norms[-1]) == 0 or len(norms) < 2:
        return ""
    ratio = float(norms[0] / norms[-1])
    if 1 / FAR < ratio < FAR:
        return ""
    return f" The weights of block 1 get {ratio:.1g} times the gradient of the last block's."
