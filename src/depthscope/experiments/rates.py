"""A rate for every arm of a race: each on the same grid, chosen on the validation split."""

import math
from collections.abc import Sequence
from dataclasses import replace

from depthscope.experiments.races import Race, run_race
from depthscope.training.lane import Lane


def run_at_best_rates(race: Race, rates: Sequence[float], *, done: int = 0, total: int = 0) -> list[Lane]:
    """Every arm at every rate with the first seed, then at its best rate with the other seeds.

    A lane for each arm, with the trials its rate was chosen from. For the progress: see run_race.
    """
    first, *others = race.seeds
    total = total or runs_at_best_rates(race, rates)
    grid = replace(race, arms=[f"{arm}@{rate:g}" for arm in race.arms for rate in rates], seeds=[first])
    tried = run_race(grid, done=done, total=total)
    chosen = [best(tried[start : start + len(rates)]) for start in range(0, len(tried), len(rates))]
    if not others:
        return chosen
    rest = replace(race, arms=[lane.arm.name for lane in chosen], seeds=others)
    more = run_race(rest, done=done + grid.runs, total=total)
    return [replace(lane, runs=lane.runs | same.runs) for lane, same in zip(chosen, more, strict=True)]


def runs_at_best_rates(race: Race, rates: Sequence[float]) -> int:
    """How many trainings that takes."""
    return len(race.arms) * (len(rates) + len(race.seeds) - 1)


def best(tried: Sequence[Lane]) -> Lane:
    """Of one arm at several rates, the lane of least validation loss; one that diverged is behind all others."""
    losses = [_valid_loss(lane) for lane in tried]
    trials = [
        {"lr": lane.lr, "valid_loss": loss, "why": "; ".join(lane.diverged.values())}
        for lane, loss in zip(tried, losses, strict=True)
    ]
    return replace(tried[losses.index(min(losses))], trials=trials)


def _valid_loss(lane: Lane) -> float:
    loss = lane.mean("valid", "loss")
    return math.inf if math.isnan(loss) else loss
