"""Alarms: what is wrong at a step of a training, in which block, what drives it, and what to do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from depthscope.monitors.choices import Choices
from depthscope.monitors.pace import lost_at
from depthscope.scans.evidence import LOST, evidence_of, stays
from depthscope.scans.record import Scan
from depthscope.scans.verdict import Verdict, floor_of

Kind = Literal["not a number", "diversity", "forecast", "entropy"]
NARROW = 0.05  # of the most that entropy can be
SLOWER = "A smaller learning rate or a longer warm-up slows it."


@dataclass(frozen=True)
class Alarm:
    """kind: why; block: where, if it is one; driver: what makes tokens alike; advice: with the line of code."""

    kind: Kind
    step: int
    block: int | None
    driver: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"depthscope at step {self.step}: {self.text} {self.advice}"


def alarms_of(scan: Scan, steps: Sequence[int], diversity: Sequence[float], choices: Choices) -> list[Alarm]:
    """What is wrong at the last of some looks: steps and the diversity at each, and the scan of the last."""
    verdict, step = scan.verdict, steps[-1]
    if verdict.status == "not a number":
        return [Alarm("not a number", step, verdict.block, verdict.driver, verdict.text, verdict.advice)]
    found = _low_diversity(scan, verdict, step, choices.floor)
    found = found or _falling(verdict, steps, diversity, choices)
    narrow = _narrow_attention(scan, verdict, step, NARROW if choices.entropy_floor is None else choices.entropy_floor)
    return [one for one in (found, narrow) if one is not None]


def _low_diversity(scan: Scan, verdict: Verdict, step: int, floor: float | None) -> Alarm | None:
    """Below the floor, or what the verdict says where there is none."""
    if floor is None:
        if not verdict.fix_needed:
            return None
        return Alarm("diversity", step, verdict.block, verdict.driver, verdict.text, verdict.advice)
    curve = evidence_of(scan, floor_of(scan.dtype)).value.mean(-1)
    block = stays(curve < floor)
    if block is None:
        return None
    text = f"From block {block} on less than {floor:.2g} of the signal differs between tokens (the floor you set)."
    advice = (
        verdict.advice if verdict.fix_needed else f"ds.advise(monitor.alarmed, floor={floor:g}) looks for a change."
    )
    return Alarm("diversity", step, block, verdict.driver, f"{text} {verdict.text}", advice)


def _falling(verdict: Verdict, steps: Sequence[int], diversity: Sequence[float], choices: Choices) -> Alarm | None:
    """The pace of the fall takes diversity below the floor before the run ends."""
    target = LOST if choices.floor is None else choices.floor
    end = None if choices.total is None else lost_at(steps, diversity, target)
    if end is None or choices.total is None or end > choices.total:
        return None
    text = (
        f"Tokens grow alike while the model trains: {diversity[-1]:.2g} of the signal differs between them at the last "
        f"block; at this pace it is {target:.2g} at step {math.ceil(end)} of {choices.total}."
    )
    because = f" Driven by {verdict.driver}." if verdict.driver else ""
    advice = f"ds.advise(monitor.alarmed, floor={max(0.1, 2 * target):g}) looks for a change. {SLOWER}"
    return Alarm("forecast", steps[-1], None, verdict.driver, text + because, advice)


def _narrow_attention(scan: Scan, verdict: Verdict, step: int, floor: float) -> Alarm | None:
    """The mean entropy of the heads of a block is almost nothing of what it could be."""
    if "attention_entropy" not in scan.heads:
        return None
    share = scan["attention_entropy"] / widest(scan.valid_tokens, causal=bool(scan.causal))
    low = torch.where(share.isnan(), torch.inf, share)
    block = int(low.argmin()) + 1
    if not float(low[block - 1]) < floor:
        return None
    text = (
        f"Attention of block {block} has collapsed to single tokens: its entropy is {float(low[block - 1]):.1%} of the "
        "most that is possible, mean over heads."
    )
    advice = f"Keep scores small: ds.fix_(model, ds.remedies.QKNorm()) or ds.remedies.SigmaReparam(). {SLOWER}"
    return Alarm("entropy", step, block, verdict.driver, text, advice)


def widest(tokens: float, *, causal: bool) -> float:
    """Entropy of attention that looks at all alike, in nats: log n; causal: the mean of log i over i = 1 .. n."""
    return math.lgamma(tokens + 1) / tokens if causal else math.log(tokens)
