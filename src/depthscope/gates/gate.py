"""gate(): a scan, or two, and what is asked of them become checks that hold or do not."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from depthscope.errors import ForecastError, UsageError, said_by
from depthscope.forecasts.advise import advise
from depthscope.gates.demands import BROKEN, Demands, demanded
from depthscope.gates.record import Check, Gate, Judged
from depthscope.scans.evidence import Evidence, evidence_of, stays
from depthscope.scans.record import Scan
from depthscope.scans.verdict import floor_of

USELESS = (BROKEN, "vanished")  # a model whose diversity says nothing about it


@said_by("gate")
def gate(
    scan: Scan,
    *,
    against: Scan | None = None,
    min_diversity: float | None = None,
    verdict: str | Iterable[str] | None = None,
    tolerance: float | None = None,
) -> Gate:
    """Test whether a scan meets the demands, for every stream of the model. A NaN or infinity always fails.

    Args:
        scan: The scan to test. Without any demand it passes if its verdict says that no fix is needed.
        against: An earlier scan of the same model. At most the share `tolerance` of its diversity may be lost, and the
            verdict may not turn into one that needs a fix.
        min_diversity: The share of the signal that must differ between tokens after the last block, in (0, 1]. The
            verdict then decides only where diversity means nothing (vanished).
        verdict: The verdicts that pass, in place of all that need no fix.
        tolerance: See against; 0.1 if left out.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> X = torch.randn(2, 4, 8, generator=torch.manual_seed(0))  # (batch, n, d)
        >>> ds.gate(ds.scan(model, X), min_diversity=0.001).passed
        True
    """
    asked = demanded(min_diversity, verdict, tolerance, compared=against is not None)
    if against is not None:
        _same_model(scan, against)
    checks: list[Check] = []
    judged: list[Judged] = []
    for name, one in scan.streams.items():
        other = None if against is None else against.streams[name]
        now, then = diversities(one, other)
        mine = [_finite(one), _verdict(one, other, asked)]
        least = asked.min_diversity or 0.0
        if asked.min_diversity is not None:
            mine.append(_diversity(name, now, asked.min_diversity))
        if then is not None and asked.tolerance is not None:
            mine.append(_regression(name, now, then, asked.tolerance, floor_of(one.dtype)))
            least = max(least, float(then[-1]) * (1 - asked.tolerance))
        found = one.verdict
        too_little = any(not check.holds for check in mine[2:]) and not found.fix_needed
        advice = _advice(one, least) if too_little else found.advice
        judged.append(Judged(name, found.status, found.block, found.driver, found.text, advice, now, then))
        checks += mine
    earlier = None if against is None else against.title
    return Gate(scan.title, earlier, scan.depth, checks, judged, asked, _notes(scan, against))


def diversities(scan: Scan, before: Scan | None) -> tuple[Tensor, Tensor | None]:
    """The diversity of every state, mean over sequences, (depth + 1,), of both scans measured in the same way.

    Which way counts (with or without outliers and shared channels) is told by the later scan: two ways would show a
    difference where there is none.
    """
    found = evidence_of(scan, floor_of(scan.dtype))
    if before is None:
        return found.value.mean(-1), None
    earlier = evidence_of(before, floor_of(before.dtype))
    chosen = found.by_core
    if len(earlier.by_core) != len(chosen):
        chosen = chosen.float().mean(0, keepdim=True) >= 0.5

    def curve(one: Evidence) -> Tensor:
        return torch.where(chosen, one.core, one.rest).mean(-1)

    return curve(found), curve(earlier)


def _advice(scan: Scan, least: float) -> str:
    """What would keep this diversity, where the verdict alone asks for no change; its own advice if none is known."""
    try:
        return advise(scan, floor=least).text
    except (ForecastError, UsageError):  # steps that a forecast does not know, or more than any change can keep
        return scan.verdict.advice


def _finite(scan: Scan) -> Check:
    broken = scan.verdict.status == BROKEN
    return Check("finite", scan.stream, not broken, scan.verdict.text if broken else "no NaN and no infinity.")


def _verdict(scan: Scan, before: Scan | None, asked: Demands) -> Check:
    found = scan.verdict
    said = f"the verdict is {found.status!r}"
    if asked.verdict is not None:
        holds = found.status in asked.verdict
        return Check("verdict", scan.stream, holds, f"{said}; asked for: {', '.join(asked.verdict)}.")
    if asked.min_diversity is not None:
        held = "its diversity means nothing" if found.status in USELESS else "the diversity decides"
        return Check("verdict", scan.stream, found.status not in USELESS, f"{said}; {held}.")
    needed = "and a fix is needed" if found.fix_needed else "and no fix is needed"
    if before is None:
        return Check("verdict", scan.stream, not found.fix_needed, f"{said}, {needed}.")
    worse = found.status in USELESS or (found.fix_needed and not before.verdict.fix_needed)
    return Check("verdict", scan.stream, not worse, f"{said}, {needed}; it was {before.verdict.status!r} before.")


def _diversity(stream: str, now: Tensor, least: float) -> Check:
    end, depth = float(now[-1]), len(now) - 1
    start = stays(~(now >= least))  # NaN is not enough
    since = "" if start is None else f" It is below from {'the input' if start == 0 else f'block {start}'} on."
    says = f"{end:.3g} of the signal differs between tokens after block {depth}; asked for: {least:g} or more.{since}"
    return Check("diversity", stream, end >= least, says)


def _regression(stream: str, now: Tensor, then: Tensor, most: float, floor: float) -> Check:
    """Below the floor of the number format there is only noise, and nothing more to lose."""
    share = 1 - now.clamp(min=floor) / then.clamp(min=floor)
    end, depth = float(share[-1]), len(now) - 1
    start = stays(~(share <= most))
    since = "" if start is None else f" From {'the input' if start == 0 else f'block {start}'} on it is more."
    how = f"{abs(end):.1%} {'less' if end > 0 else 'more'}"
    says = (
        f"{float(now[-1]):.3g} of the signal differs between tokens after block {depth}, {how} than "
        f"{float(then[-1]):.3g} before; at most {most:.1%} less is allowed.{since}"
    )
    return Check("regression", stream, end <= most, says)


def _same_model(scan: Scan, against: Scan) -> None:
    """Raise UsageError unless both scans can be of one model."""
    if {*scan.streams} != {*against.streams}:
        now, then = (", ".join(one.streams) for one in (scan, against))
        raise UsageError(
            f"both scans must have the same streams; now there are {now}, before {then}. "
            "They are of two models: scan the right one again, or name one stream."
        )
    for name, one in scan.streams.items():
        other = against.streams[name]
        for fact in ("depth", "width"):
            a, b = getattr(one, fact), getattr(other, fact)
            if a != b:
                raise UsageError(
                    f"both scans must be of one model; the {fact} is {a} now and {b} before. Scan the right one again."
                )
        if not math.isfinite(other.verdict.diversity):
            raise UsageError(
                f"the earlier scan must have numbers to compare with; its verdict is {other.verdict.status!r}. "
                "Take a scan of a state of the model that works."
            )


def _notes(scan: Scan, against: Scan | None) -> list[str]:
    if against is None:
        return []
    facts = {"model": "models", "tokens": "numbers of tokens", "samples": "numbers of sequences", "dtype": "dtypes"}
    pairs = {word: (getattr(scan, name), getattr(against, name)) for name, word in facts.items()}
    return [
        f"the scans are of different {word}: {a} now, {b} before. A difference may come from that."
        for word, (a, b) in pairs.items()
        if a != b
    ]
