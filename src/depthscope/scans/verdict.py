"""One plain judgement of a scan: is depth still doing something, where does it stop, and what is to blame.

High similarity alone is no failure: pre-norm, Llama and Sub-LN models sit at 0.85 to 0.96 before training and train
well. What counts is how little is left to tell tokens apart, sequence by sequence, and whether it still shrinks by a
factor from block to block. The rules are tried in their order, and the first that knows an answer gives it.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from depthscope.later import ADVISES
from depthscope.scans import words
from depthscope.scans.evidence import DISAGREE, DIVERSE, FAST, GONE, LOST, Evidence, evidence_of, stays
from depthscope.scans.shares import driver_of, growth_shares
from depthscope.scans.verdict_record import Status, Verdict

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

BY_SCORE = "No fix needed if it learned: judge it by its score."
TRAINS = "No fix needed: models like this train."


def floor_of(dtype: str) -> float:
    """t_div below which only rounding noise is left: 8 eps^2, about 1e-13 in float32."""
    return 8 * torch.finfo(getattr(torch, dtype)).eps ** 2


class Case:
    """A scan before the judges: its evidence, who is to blame, and what all verdicts on it have in common."""

    def __init__(self, scan: "Scan") -> None:
        self.scan, self.found = scan, evidence_of(scan, floor_of(scan.dtype))
        raw, own = (float(curve[-1].median()) for curve in (self.found.t_div, self.found.value))
        agree = not max(raw, own) > DISAGREE * min(raw, own)  # what the steps did was measured on all tokens
        self.shares = growth_shares(scan) if agree else {}
        self.driver = driver_of(self.shares)
        self.why = words.why_they_disagree(scan, self.found)

    @property
    def because(self) -> str:
        return f" Driven by {self.driver}." if self.driver and float(self.found.value[-1].mean()) < DIVERSE else ""

    def verdict(
        self,
        status: Status,
        text: str,
        advice: str,
        *,
        block: int | None = None,
        step: str | None = None,
        pace: float = math.nan,
        fix_needed: bool = True,
        collapsed: int = 0,
    ) -> Verdict:
        return Verdict(
            status,
            block,
            step,
            float(self.found.t_div[-1].mean()),
            pace,
            self.driver,
            self.shares,
            fix_needed,
            text,
            advice,
            float(self.found.value[-1].mean()),
            float(self.found.rank[-1].median()),
            collapsed,
            tuple(sorted({one.position for one in self.scan.massive})),
        )


def judge(scan: "Scan") -> Verdict:
    """The verdict on a scan; with dropout on, on the run without it."""
    case = Case(scan)
    return next(verdict for rule in RULES if (verdict := rule(case)) is not None)


def _not_a_number(case: Case) -> Verdict | None:
    if case.scan.broken is not None:
        block, step = case.scan.broken
        where = "in the input of block 1" if block == 0 else f"in block {block}, step {step!r}"
        text = f"A NaN or infinity appears first {where}; everything after it is meaningless."
        advice = "Mend that step first (learning rate, initial scale, float16 overflow), then scan again."
        return case.verdict("not a number", text, advice, block=block, step=step)
    unknown = case.found.t_div.isnan().any(-1)
    if not unknown.any():
        return None
    block = int(unknown.nonzero()[0])
    text = f"After block {block} the tokens are all zero: there is nothing left to compare."
    advice = "Look for a branch or a remedy that removes everything there."
    return case.verdict("not a number", text, advice, block=block)


def _pooled(case: Case) -> Verdict | None:
    """A classifier that averages its tokens may as well do so in its last blocks: that is no loss."""
    found = case.found
    start = found.pooled
    if start is None:
        return None
    text = f"{words.sequences(found.lost[-1])}from block {start} on {words.alike_within(found)}.{case.why}"
    text = text[0].upper() + text[1:]
    pace = found.pace(case.scan.depth, found.lost[-1])
    return case.verdict("escalating", text, BY_SCORE, block=start, pace=pace, fix_needed=False)


def _lost(case: Case) -> Verdict | None:
    """Collapsed, in half of the sequences or more; escalating, in fewer."""
    found = case.found
    slow, _ = _slow(found)
    lost = found.lost[-1] & ~slow
    count, half = int(lost.sum()), len(lost) / 2
    if count == 0:
        return None
    start = stays(found.lost[:, lost].sum(-1) >= min(half, count))
    assert start is not None  # these sequences are lost at the end
    pace = found.pace(start, lost)
    where = f"{words.sequences(lost)}{words.how_lost(found, lost, start, pace)}"
    where = where[0].upper() + where[1:]
    why = f"{case.why}{case.because}{words.gradient_words(case.scan)}"
    if count < half:
        text = f"{where} In the others {float(found.value[-1, ~lost].mean()):.0%} still differs.{why}"
        advice = "Look at these sequences: what they have in common is lost on this model. " + _advice(case.scan)
        return case.verdict("escalating", text, advice, block=start, pace=pace, collapsed=count)
    floor = stays((found.value < found.floor).sum(-1) >= half)
    if floor is not None:
        text = words.sequences(lost) + words.all_the_same(found, lost, floor, case.scan.dtype)
        text += f"; less than 1 % of the signal differed from block {start} on.{why}"
        settings: dict[str, Any] = {"block": floor, "pace": pace, "collapsed": count}
        text = text[0].upper() + text[1:]
        return case.verdict("at the numerical floor", text, _advice(case.scan), **settings)
    return case.verdict("collapsed", f"{where}{why}", _advice(case.scan), block=start, pace=pace, collapsed=count)


def _vanished(case: Case) -> Verdict | None:
    """Only rounding noise reaches a head: nothing but a bias can be learned, however diverse the tokens are."""
    if not case.scan.vanished:
        return None
    who = ", ".join(
        f"{f'the input of {path}' if path else 'the output'} ({share:.1e})"
        for path, share in case.scan.vanished.items()
    )
    left = float(case.found.value[-1].mean())
    text = (
        f"Nothing but rounding noise is left after the last block of {who}, as a share of the size of the tokens, "
        f"although {left:.0%} of the signal differs between them: their mean is zero.{case.why}"
    )
    advice = "Pool one token (cls) or by attention, take a tau below 1, or leave the last block out of the remedy."
    return case.verdict("vanished", text, advice, block=case.scan.depth)


def _slowly_alike(case: Case) -> Verdict | None:
    slow, pace = _slow(case.found)
    if slow.float().mean() < 0.5:
        return None
    start = stays((case.found.same & slow).sum(-1) >= len(slow) / 2)
    end = float(case.found.value[-1, slow].mean())
    text = f"Tokens are alike (t_div {end:.2g}), but became so slowly, by {pace - 1:.1%} a block.{case.why}"
    return case.verdict("escalating", text + case.because, TRAINS, block=start, pace=pace, fix_needed=False)


def _common_offset(case: Case) -> Verdict | None:
    found = case.found
    if found.offset.float().mean() < 0.5:
        return None
    start = stays((found.same & found.offset).sum(-1) >= len(found.offset) / 2)
    pace = found.pace(case.scan.depth, found.offset)
    text = (
        f"A common offset makes tokens alike (t_div {float(found.value[-1].mean()):.2g} from block {start} on), but "
        f"what differs between them is as large as at the start, in {float(found.rank[-1].median()):.0f} "
        f"directions.{case.why}{case.because}"
    )
    soon = float(found.value[-1, found.offset].mean()) / pace ** (case.scan.depth / 4) < GONE
    advice = (
        f"At this pace a quarter more blocks would lose them. {_advice(case.scan)}"
        if soon
        else "No fix needed at these weights: a bias of the next layer can take the offset away."
    )
    return case.verdict("escalating", text, advice, block=start, pace=pace, fix_needed=soon)


def _mostly_alike(case: Case) -> Verdict | None:
    found = case.found
    chosen = found.majority[-1]
    if chosen.float().mean() < 0.5:
        return None
    start = stays((found.majority & chosen).sum(-1) >= len(chosen) / 2)
    share, points = (float(curve[-1, chosen].mean()) for curve in (found.share, found.points))
    what = f"{share:.0%} of the tokens are the same" if share >= points else f"{points:.0%} sit in at most four points"
    text = f"From block {start} on {what}; the others still differ.{case.because}"
    return case.verdict("escalating", text, _advice(case.scan), block=start, pace=_last_pace(found))


def _growing_alike(case: Case) -> Verdict | None:
    values = case.found.value.mean(-1)
    start, end, depth = float(values[0]), float(values[-1]), case.scan.depth
    pace = _last_pace(case.found)
    if not (pace >= FAST and end < 0.5 * start and end / pace**depth < LOST):
        return None
    more = max(1, math.ceil(math.log(end / LOST) / math.log(pace)))
    text = (
        f"Tokens grow alike: t_div {end:.2g} at block {depth}, divided by {pace:.2f} in every block; "
        f"{more} more blocks would lose them.{case.why}{case.because}"
    )
    advice = "No fix needed at this depth; deeper, one will be. " + _advice(case.scan, depth + more)
    return case.verdict("escalating", text, advice, pace=pace, fix_needed=False)


def _few_directions(case: Case) -> Verdict | None:
    if case.found.narrow.float().mean() < 0.5:
        return None
    text = f"{words.directions_left(case.found)}.{case.why}{case.because}"
    return case.verdict("escalating", text, BY_SCORE, pace=_last_pace(case.found), fix_needed=False)


def _diverse(case: Case) -> Verdict:
    end = float(case.found.value[-1].mean())
    text = (
        f"At these weights {end:.0%} of the signal still differs between tokens at block {case.scan.depth} "
        f"(t_div {end:.2g}).{case.why}{case.because}"
    )
    advice = "No fix needed; training may change that."
    return case.verdict("diverse", text, advice, pace=_last_pace(case.found), fix_needed=False)


RULES: list[Callable[[Case], Verdict | None]] = [
    _not_a_number,
    _pooled,
    _lost,
    _vanished,
    _slowly_alike,
    _common_offset,
    _mostly_alike,
    _growing_alike,
    _few_directions,
    _diverse,
]


def _slow(found: Evidence) -> tuple[torch.Tensor, float]:
    """Sequences whose tokens are alike and came there slowly, (samples,), and their pace."""
    alike = found.same[-1] & (found.value[-1] >= GONE) & ~found.offset & ~found.on_a_line[-1] & ~found.in_points[-1]
    if not alike.any():
        return alike, math.nan
    start = stays((found.same & alike).sum(-1) >= alike.sum() / 2)
    pace = found.fastest(start or 0, alike)
    return alike & (pace < FAST and start != 0), pace


def _last_pace(found: Evidence) -> float:
    return found.pace(len(found.value) - 1, torch.ones_like(found.value[0], dtype=torch.bool))


_advisers: list[Callable[["Scan", int | None], str]] = []


def advised_by(adviser: Callable[["Scan", int | None], str]) -> None:
    """Set who says what to do about a scan, at its own depth or a larger one: scans know nothing of forecasts."""
    _advisers[:] = [adviser]


def _advice(scan: "Scan", depth: int | None = None) -> str:
    if not _advisers:
        import_module(ADVISES)
    return _advisers[0](scan, depth)
