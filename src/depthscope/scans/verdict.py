"""One plain judgement of a scan: is depth still doing something, where does it stop, and what is to blame.

High similarity alone is no failure: pre-norm, Llama and Sub-LN models sit at 0.85 to 0.96 before training and train
well. What counts is how little diversity is left, and whether it still shrinks by a factor from block to block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from depthscope.records import plain

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

Status = Literal["diverse", "escalating", "collapsed", "at the numerical floor", "not a number"]

LOST = 0.01  # less than a hundredth of the signal differs between tokens
DIVERSE = 0.9  # above this there is no likeness to explain
FAST = 1.02  # t_div shrinks by this factor a block or more: exponential, not the slow power law of pre-norm
QUIET = 0.5  # total growth of the log-odds t_sim / t_div below which nothing is worth blaming


@dataclass(frozen=True)
class Verdict:
    """status, the block where it happens, what drives it with its share, and what to do."""

    status: Status
    block: int | None
    step: str | None
    t_div: float
    pace: float  # t_div shrinks by this factor per block, over the last quarter before `block` or the end
    driver: str
    shares: dict[str, float]  # of the growth of similarity: attention, ffn, norms, embeddings, biases
    fix_needed: bool
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.status}: {self.text} {self.advice}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return plain(self)


def floor_of(dtype: str) -> float:
    """t_div below which only rounding noise is left: 8 eps^2, about 1e-13 in float32."""
    return 8 * torch.finfo(getattr(torch, dtype)).eps ** 2


def judge(scan: "Scan") -> Verdict:
    """The verdict on a scan; with dropout on, on the run without it."""
    t_div = scan.states["t_div"] if scan.without_dropout is None else scan.without_dropout
    shares = growth_shares(scan)
    driver = _driver(shares)
    if scan.broken is not None:
        block, step = scan.broken
        where = "in the input of block 1" if block == 0 else f"in block {block}, step {step!r}"
        text = f"A NaN or infinity appears first {where}; everything after it is meaningless."
        advice = "Mend that step first (learning rate, initial scale, float16 overflow), then scan again."
        return Verdict("not a number", block, step, math.nan, math.nan, driver, shares, True, text, advice)
    values = [float(v) for v in t_div]
    if any(math.isnan(v) for v in values):
        block = next(i for i, v in enumerate(values) if math.isnan(v))
        text = f"After block {block} the tokens are all zero: there is nothing left to compare."
        advice = "Look for a branch or a remedy that removes everything there."
        return Verdict("not a number", block, None, math.nan, math.nan, driver, shares, True, text, advice)
    end, depth = values[-1], scan.depth
    floor = floor_of(scan.dtype)
    lost = _stays_below(values, LOST)
    pace = _pace(values, depth if lost is None else lost)
    because = f" Driven by {driver}." if driver and end < DIVERSE else ""
    if end < floor and lost is not None:
        bottom = _stays_below(values, floor)
        text = (
            f"All tokens are the same from block {bottom} on, as far as {scan.dtype} can tell (t_div {end:.1e}); "
            f"less than 1 % of the signal differed from block {lost} on.{because}"
        )
        return Verdict("at the numerical floor", bottom, None, end, pace, driver, shares, True, text, _advice(scan))
    if lost is not None and (pace >= FAST or lost == 0):
        slope = f", divided by {pace:.2f} a block on the way there" if lost else ""
        text = (
            f"From block {lost} on less than 1 % of the signal differs between tokens (token diversity t_div {end:.2g} "
            f"at block {depth}{slope}).{because}"
        )
        return Verdict("collapsed", lost, None, end, pace, driver, shares, True, text, _advice(scan))
    if lost is not None:
        text = f"Tokens are alike (t_div {end:.2g}) but came there slowly, by {pace - 1:.1%} a block.{because}"
        advice = "No fix needed: models like this train."
        return Verdict("escalating", lost, None, end, pace, driver, shares, False, text, advice)
    if pace >= FAST and end < 0.5 * values[0] and end / pace**depth < LOST:
        more = math.ceil(math.log(end / LOST) / math.log(pace))
        text = (
            f"Tokens grow alike: t_div {end:.2g} at block {depth}, divided by {pace:.2f} in every block; "
            f"{more} more blocks would lose them.{because}"
        )
        advice = "No fix needed at this depth; deeper, one will be. " + _advice(scan, depth + more)
        return Verdict("escalating", None, None, end, pace, driver, shares, False, text, advice)
    text = f"{end:.0%} of the signal still differs between tokens at block {depth} (t_div {end:.2g}).{because}"
    return Verdict("diverse", None, None, end, pace, driver, shares, False, text, "No fix needed.")


def growth_shares(scan: "Scan") -> dict[str, float]:
    """Who made the tokens alike: shares of the growth of log(t_sim / t_div) from unrelated tokens to the last block.

    The log-odds add up exactly over steps, sequence by sequence (Yu & Zhang 2023, eq. (6) in odds form). Growth that
    biases explain is counted as theirs. Empty when there is nothing to share out.
    """
    t_sim, t_div = float(scan.states["t_sim"][0]), float(scan.states["t_div"][0])
    if t_div == 0:
        return {"embeddings": 1.0}
    growth = {"embeddings": math.log(t_sim / t_div * (scan.valid_tokens - 1)) if t_sim > 0 else 0.0}
    for name in scan.step_names:
        row = scan.steps[name]
        usable = row["gain"].isfinite()
        gain = row["gain"][usable]
        bias = torch.where(gain > 0, row["bias_share"][usable].clamp(0, 1), 0.0)
        kind = "norms" if name.endswith("_norm") else "branches" if " and " in name else name.split("_")[0]
        growth["biases"] = growth.get("biases", 0.0) + float((gain * bias).sum())
        growth[kind] = growth.get(kind, 0.0) + float((gain * (1 - bias)).sum())
    positive = {name: value for name, value in growth.items() if value > 0}
    total = sum(positive.values())
    return {name: value / total for name, value in positive.items()} if total > QUIET else {}


_WORDS = {
    "attention": "mixing by attention",
    "branch": "branches in which no attention is seen",
    "branches": "attention and feed-forward in parallel",
    "ffn": "the feed-forward network (its activation adds a common offset)",
    "norms": "the norms",
    "embeddings": "the embeddings (tokens enter already alike)",
    "biases": "a common offset from biases",
    "remedy": "the remedy",
    "other": "what the block does after its last residual sum",
}


def _driver(shares: dict[str, float]) -> str:
    """The largest share in words, with the second where it is a quarter or more."""
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    named = [f"{_WORDS[name]} ({share:.0%})" for i, (name, share) in enumerate(ranked[:2]) if i == 0 or share >= 0.25]
    return " and ".join(named)


_advisers: list[Callable[["Scan", int | None], str]] = []


def advised_by(adviser: Callable[["Scan", int | None], str]) -> None:
    """Set who says what to do about a scan, at its own depth or a larger one: scans know nothing of forecasts."""
    _advisers[:] = [adviser]


def _advice(scan: "Scan", depth: int | None = None) -> str:
    return _advisers[0](scan, depth)


def _stays_below(values: list[float], limit: float) -> int | None:
    """The first index from which all values are below the limit."""
    first = None
    for i, value in enumerate(values):
        if value < limit:
            first = i if first is None else first
        else:
            first = None
    return first


def _pace(values: list[float], end: int) -> float:
    """Factor by which t_div shrinks in each of the blocks before `end`, over a quarter of the depth."""
    window = max(1, (len(values) - 1) // 4)
    start = max(0, end - window)
    if start == end or values[end] <= 0 or values[start] <= 0:
        return math.inf if values[end] <= 0 else 1.0
    return (values[start] / values[end]) ** (1 / (end - start))
