"""Will it train, and at which rate? The forecast of training held against trainings that it has not seen.

Random designs on three tasks climb a ladder of rates. The numbers of the forecast are fitted on one half of them; the
other half, drawn before anything was run, says how good it is. AdamW without warm-up, 50 to 64 steps.

depthscope reproduce beyond/will_it_train     seconds: the outcomes of the trainings come with the package. They are
made again by --set outcomes=trained --set folder=out/will_it_train, in hours; stopped, the same command goes on.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.experiments.claim import Claim, reported, stated
from depthscope.experiments.odds_of_training import auc, auc_interval, logistic, share_interval, told, within

FACTOR = 3.0  # of the largest rate
REPAIRS = ("advice", "pre_norm", "deep_norm", "de_escalate")  # what is done to a design that fails
BASELINES = ("rate alone", "t_sim", "verdict", "gradient growth", "depth")


def claims(numbers: dict[str, Tensor], cfg: Any) -> list[Claim]:
    """All of the half that was held out."""
    out = numbers["held_out"].bool()
    trains, chance = numbers["trains"][out].bool(), numbers["probability"][out]
    right = within(numbers["forecast_rate"][out], numbers["largest_rate"][out], FACTOR)
    always = within(numbers["usual_rate"].expand(int(out.sum())), numbers["largest_rate"][out], FACTOR)
    repaired = numbers["repaired"].bool()  # (failures, arms)
    can = repaired[repaired.any(1)]
    shares = repaired.double().mean(0)
    return stated(
        int(out.sum()),
        ("area under the ROC curve of training at a rate", auc(chance.flatten(), trains.flatten()), 0.90, 1.0, 0.5),
        (f"largest rate forecast within a factor of {FACTOR:g}", right.double().mean(), 0.80, 1.0, always.double().mean()),
        ("of failures that an arm repairs, repaired by advice", can[:, 0].double().mean(), 0.90, 1.0, 0.0),
        ("share repaired by advice, less the best constant choice", shares[0] - shares[1:].max(), 0.0, 1.0, -shares[1:].max()),
    )
