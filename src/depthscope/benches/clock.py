"""The clocks: of the wall, or of the processor time that the process has used."""

import time
from collections.abc import Callable

import torch

from depthscope.errors import UsageError

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def clock_called(name: str, device: torch.device) -> Callable[[], float]:
    """Seconds now. The device has finished what it was given; processor time says nothing of another device."""
    if name not in CLOCKS:
        raise UsageError(f"bench: --clock must be {' or '.join(CLOCKS)}; got {name!r}. The wall is the default.")
    if device.type == "cpu":
        return CLOCKS[name]
    if name == "cpu":
        raise UsageError(
            f"bench: --clock cpu counts the time of processors; got --device {device}, whose time it does not see. "
            "Leave --clock out."
        )

    def now() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return now


def seconds(now: Callable[[], float], run: Callable[[], object]) -> float:
    """How long one run takes."""
    start = now()
    run()
    return now() - start
