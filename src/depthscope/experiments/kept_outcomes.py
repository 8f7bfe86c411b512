"""The outcomes of the trainings of beyond/will_it_train, which come with the package as a table."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from depthscope.experiments.drawn_designs import DrawnDesign
from depthscope.experiments.outcomes import RATES, Outcome, next_rate
from depthscope.files import whole_file

TABLE = Path(__file__).with_name("outcomes.json")


class Repair(NamedTuple):
    """What came of a change to a design that fails at a rate. arm: who asked for the change, settings: what it was."""

    arm: str
    settings: dict[str, Any]
    outcome: Outcome


class Outcomes(NamedTuple):
    """Of the ladder, by design; of the changes, by design that failed."""

    ladder: dict[int, list[Outcome]]
    repairs: dict[int, list[Repair]]


def kept(path: Path | None = None) -> Outcomes:
    """A table, or the one of the package. Its rows are [design, rate, best, score, steps, status, seconds], repairs
    have arm and settings."""
    record = json.loads((path or TABLE).read_text())
    ladder: dict[int, list[Outcome]] = defaultdict(list)
    repairs: dict[int, list[Repair]] = defaultdict(list)
    for number, *row in record["ladder"]:
        ladder[number].append(Outcome(number, *row))
    for number, arm, settings, *row in record["repairs"]:
        repairs[number].append(Repair(arm, settings, Outcome(number, *row)))
    return Outcomes(ladder, repairs)


def write(path: Path, found: Outcomes, command: str) -> None:
    """The table as a file, a line for each run."""

    def row(one: Outcome) -> list[Any]:
        return [one.rate, round(one.best, 4), round(one.score, 4), one.steps, one.status, round(one.seconds, 1)]

    ladder = [[number, *row(one)] for number, ones in sorted(found.ladder.items()) for one in ones]
    repairs = [
        [number, one.arm, one.settings, *row(one.outcome)]
        for number, ones in sorted(found.repairs.items())
        for one in ones
    ]
    lines = [f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(one)}" for one in rows) + "\n  ]"
             for name, rows in (("ladder", ladder), ("repairs", repairs))]  # fmt: skip
    with whole_file(path) as part:
        part.write_text("{\n" + f'  "command": {json.dumps(command)},\n' + ",\n".join(lines) + "\n}\n")


def is_whole(ones: list[Outcome]) -> bool:
    """Whether the largest rate at which a design trains is known."""
    return next_rate({one.rate: one.trains for one in ones}) is None


def on_the_ladder(ones: list[Outcome]) -> list[float]:
    """1 and 0 for each rate, from small to large, at which a design trains or does not; NaN where it was not tried.

    What lies above a rate that fails, which lies above one that trains, fails as well.
    """
    known = {one.rate: float(one.trains) for one in ones}
    row, ladder = [known.get(rate, float("nan")) for rate in sorted(RATES)], sorted(RATES)
    top = max((k for k, value in enumerate(row) if value == 1), default=len(ladder))
    return row[: top + 2] + [value if value == value else 0.0 for value in row[top + 2 :]]


def largest(ones: list[Outcome]) -> float:
    """The largest rate of the ladder that trains; a third of the least where none does."""
    return max((one.rate for one in ones if one.trains), default=min(RATES) / 3)


def wanted_rate(design: DrawnDesign, ones: list[Outcome]) -> float | None:
    """The rate at which a design that judges advice fails, and is to train: 1e-3, or else 3e-3."""
    failed = {one.rate for one in ones if not one.trains}
    return next((rate for rate in (1e-3, 3e-3) if rate in failed), None) if design.judges_advice else None
