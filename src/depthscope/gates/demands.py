"""What is asked of a model at a gate; what cannot be asked is refused before any model runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import unknown
from depthscope.scans.verdict import Status

STATUSES: tuple[str, ...] = get_args(Status)
BROKEN = "not a number"
TOLERANCE = 0.1


@dataclass(frozen=True)
class Demands:
    """min_diversity: share of the signal that must differ between tokens after the last block. verdict: statuses that
    pass. tolerance: share of an earlier diversity that may be lost. None: not asked for."""

    min_diversity: float | None
    verdict: tuple[str, ...] | None
    tolerance: float | None


def demanded(
    min_diversity: float | None = None,
    verdict: str | Iterable[str] | None = None,
    tolerance: float | None = None,
    *,
    compared: bool,
) -> Demands:
    """The demands, checked. compared: with an earlier scan, of which a tenth may be lost unless it is said."""
    if min_diversity is not None and not 0 < min_diversity <= 1:
        raise UsageError(
            f"gate: min_diversity must lie in (0, 1]; got {min_diversity:g}. 0.05 asks for a twentieth of the signal."
        )
    if tolerance is not None and not 0 <= tolerance < 1:
        raise UsageError(
            f"gate: tolerance must lie in [0, 1); got {tolerance:g}. 0.1 allows a tenth of the diversity to be lost."
        )
    if tolerance is not None and not compared:
        raise UsageError(
            "gate: tolerance says what may be lost since an earlier state; there is none. Add against, or leave it out."
        )
    if compared and tolerance is None:
        tolerance = TOLERANCE
    return Demands(min_diversity, None if verdict is None else _statuses(verdict), tolerance)


def _statuses(verdict: str | Iterable[str]) -> tuple[str, ...]:
    names = verdict.split(",") if isinstance(verdict, str) else verdict
    wanted = tuple(str(name).strip().lower().replace("_", " ").replace("-", " ") for name in names)
    if not wanted:
        raise UsageError(f"gate: verdict must name at least one of {', '.join(STATUSES)}; got none.")
    for name in wanted:
        if name not in STATUSES:
            raise UnknownNameError("gate: " + unknown("verdict", name, STATUSES))
        if name == BROKEN:
            raise UsageError(f"gate: {BROKEN!r} can never pass; got verdict {', '.join(wanted)}. Leave it out.")
    return wanted
