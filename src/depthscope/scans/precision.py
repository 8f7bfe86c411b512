"""Measuring in the precision that metrics ask for, also while the model runs under autocast."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch


def in_full_precision(measure: Callable[..., Any], *args: Any) -> Any:
    """measure(*args) without autocast, which would round every matrix product of a metric to half precision."""
    accelerator = torch.accelerator.current_accelerator()
    kinds = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    with ExitStack() as stack:
        for kind in filter(torch.is_autocast_enabled, kinds):
            stack.enter_context(torch.autocast(kind, enabled=False))
        return measure(*args)
