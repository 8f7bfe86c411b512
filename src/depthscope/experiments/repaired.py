"""What becomes of designs that fail: trained again as advised, or as always the same choice has it."""

from pathlib import Path
from typing import Any

from depthscope.experiments.drawn_designs import DrawnDesign
from depthscope.experiments.kept_outcomes import Outcomes, Repair, wanted_rate, write
from depthscope.experiments.outcomes import climbed, outcome_here
from depthscope.experiments.progress import track
from depthscope.forecasts.advise import advise

ALWAYS: dict[str, dict[str, Any]] = {
    "pre_norm": {"wiring": "pre_norm"},
    "deep_norm": {"wiring": "deep_norm"},
    "de_escalate": {"wiring": "post_norm", "tau": 1.0},
}
REPAIRS = ("advice", *ALWAYS)
COMMAND = "depthscope reproduce beyond/will_it_train --set outcomes=trained --set folder=out/will_it_train"


def trained(designs: list[DrawnDesign], folder: Path) -> Outcomes:
    """Climb the ladder with every design, and change those of the held-out half that fail; the table in the folder."""
    found = Outcomes({}, {})
    for design in track(designs, len(designs)):
        found.ladder[design.number] = climbed(design, folder / "ladder")
        wanted = wanted_rate(design, found.ladder[design.number])
        if wanted is not None:
            found.repairs[design.number] = [
                Repair(arm, settings, outcome_here(design.changed(**settings), wanted, folder / "repairs"))
                for arm, settings in ({"advice": advised(design, wanted)} | ALWAYS).items()
            ]
        write(folder / "outcomes.json", found, COMMAND)
    return found


def advised(design: DrawnDesign, rate: float) -> dict[str, Any]:
    """The settings that advice chooses for the design without its own de-escalation and scores."""
    own = {name: value for name, value in design.asked.items() if name not in ("tau", "site", "scores")}
    return advise(**own, lr=rate).choice.settings
