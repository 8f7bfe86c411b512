"""Measuring in the precision that metrics ask for, also while the model runs under autocast."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch


def in_full_precision(measure: Callable[..., Any], *args: Any) -> Any:
    """measure(*args) without autocast, which would round every matrix product of a metric to half precision."""
    active = [kind for kind in _kinds() if torch.is_autocast_enabled(kind)]
    if not active:  # a scan measures often
        return measure(*args)
    with ExitStack() as stack:
        for kind in active:
            stack.enter_context(torch.autocast(kind, enabled=False))
        return measure(*args)


@cache
def _kinds() -> tuple[str, ...]:
    """The kinds of devices there are."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)
