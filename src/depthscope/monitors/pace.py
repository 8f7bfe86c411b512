"""When the diversity of tokens will be lost, by the pace at which it falls from look to look."""

import math
from collections.abc import Sequence

import torch

WINDOW, LEAST = 8, 5  # looks
FALLEN = 0.5  # of the highest diversity so far: what has hardly moved is no fall
SURE = 2.0  # standard errors of the slope by which it must fall
REACH = 1.0  # times as far as it looks back, a forecast looks ahead: falls slow down, and turn


def lost_at(steps: Sequence[int], diversity: Sequence[float], target: float) -> float | None:
    """The step at which diversity will be below the target; None where it does not fall, or not surely.

    A line through log(diversity) over the last looks; its slope is taken SURE standard errors slower than it is, and
    no faster than the last step of it.
    """
    steps, values = steps[-WINDOW:], diversity[-WINDOW:]
    known = all(math.isfinite(value) and value > 0 for value in values)
    if len(steps) < LEAST or not known or values[-1] <= target or values[-1] > FALLEN * max(diversity):
        return None
    x, y = (torch.tensor(list(map(f, v)), dtype=torch.float64) for f, v in ((float, steps), (math.log, values)))
    x0 = x - x.mean()
    slope = float((x0 @ y) / (x0 @ x0))
    left = y - y.mean() - slope * x0
    error = math.sqrt(float(left @ left) / (len(steps) - 2) / float(x0 @ x0))
    slow = max(slope + SURE * error, float(y[-1] - y[-2]) / (steps[-1] - steps[-2]))
    if slow >= 0:
        return None
    ahead = math.log(values[-1] / target) / -slow
    return steps[-1] + ahead if ahead <= REACH * (steps[-1] - steps[0]) else None
