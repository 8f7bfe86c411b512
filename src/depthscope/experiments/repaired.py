"""What becomes of designs that fail: trained again as advised, or as always the same choice has it."""

from pathlib import Path
from typing import Any

from depthscope.experiments.drawn_designs import DrawnDesign
from depthscope.experiments.kept_outcomes import TABLE, Outcomes, Repair, kept, wanted_rate, write
from depthscope.experiments.outcomes import climbed, outcome_here
from depthscope.experiments.progress import track
from depthscope.forecasts.advise import advise

ALWAYS: dict[str, dict[str, Any]] = {
    "pre_norm": {"wiring": "pre_norm"},
    "deep_norm": {"wiring": "deep_norm"},
    "de_escalate": {"wiring": "post_norm", "tau": 1.0},
    "rezero": {"wiring": "rezero"},
}
REPAIRS = ("advice", *ALWAYS)
COMMAND = "depthscope reproduce beyond/will_it_train --set outcomes=trained --set folder=out/will_it_train"


def trained(designs: list[DrawnDesign], folder: Path) -> Outcomes:
    """All runs of the study; the table in the folder is written after each design, and gone on with."""
    climb(designs, folder)
    return repair(designs, folder)


def climb(designs: list[DrawnDesign], folder: Path) -> Outcomes:
    """Find the largest rate of every design, the seen half first."""
    found = _table(folder)
    for design in track(sorted(designs, key=lambda one: one.held_out), len(designs)):
        known = found.ladder.get(design.number, [])
        found.ladder[design.number] = climbed(design, folder / "ladder", known=known)
        write(folder / TABLE.name, found, COMMAND)
    return found


def repair(designs: list[DrawnDesign], folder: Path) -> Outcomes:
    """Change those that judge advice and fail, as each arm has it."""
    found = _table(folder)
    for design in track(designs, len(designs)):
        wanted = wanted_rate(design, found.ladder[design.number])
        if wanted is None:
            continue
        tried = found.repairs.setdefault(design.number, [])
        done = {(one.arm, str(one.settings), one.outcome.rate) for one in tried}
        for arm, settings in ({"advice": advised(design, wanted)} | ALWAYS).items():
            if (arm, str(settings), wanted) not in done:
                tried.append(
                    Repair(arm, settings, outcome_here(design.changed(**settings), wanted, folder / "repairs"))
                )
        write(folder / TABLE.name, found, COMMAND)
    return found


def _table(folder: Path) -> Outcomes:
    path = folder / TABLE.name
    return kept(path) if path.exists() else Outcomes({}, {})


def advised(design: DrawnDesign, rate: float) -> dict[str, Any]:
    """The settings that advice chooses for the design without its own de-escalation and scores."""
    own = {name: value for name, value in design.asked.items() if name not in ("tau", "site", "scores")}
    return advise(**own, lr=rate).choice.settings
