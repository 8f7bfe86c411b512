"""When a training ends early: it diverges, or somebody asks it to stop."""

import math
import signal
import threading
from typing import Any

PATIENCE = 20  # steps
FACTOR = 10  # times the loss of a model that knows nothing


def divergence(losses: list[float], step: int, classes: int) -> str:
    """Why a training has diverged, from its last losses, the one of `step` at the end; "" when it has not."""
    loss = losses[-1]
    if not math.isfinite(loss):
        return f"the loss was {loss} at step {step}"
    limit = FACTOR * math.log(max(2, classes))
    if len(losses) >= PATIENCE and all(one > limit for one in losses[-PATIENCE:]):
        return f"the loss was above {limit:.1f} for {PATIENCE} steps, {loss:.3g} at step {step}"
    return ""


def not_finite_end(final: dict[str, dict[str, float]], finite_weights: bool) -> str:
    """Why a training that came to its end has diverged all the same; "" when it has not."""
    if not finite_weights:
        return "weights were not finite at the end"
    losses = ((split, one["loss"]) for split, one in final.items())
    return next((f"the {split} loss was {loss} at the end" for split, loss in losses if not math.isfinite(loss)), "")


class Stop:
    """While this is open, ^C and SIGTERM only ask: the step that runs is ended first. A second is obeyed at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # others may not set handlers, and get no signals
            self._before = {one: signal.signal(one, self._ask) for one in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: Any) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before.clear()

    def _ask(self, *_: Any) -> None:
        self.asked = True
        self.__exit__()
