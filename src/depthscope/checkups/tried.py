"""What the verbs can do with a stream, found by trying: remedies at every site, and a forecast."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from depthscope.errors import DepthscopeError
from depthscope.forecasts.forecast import forecast
from depthscope.laws.sampled_steps import DRAWS
from depthscope.remedies.de_escalate import DeEscalate
from depthscope.remedies.fix import TOKEN_SITES, fix_
from depthscope.scans.record import Scan
from depthscope.traces.inputs import Batch
from depthscope.traces.untouched import untouched

_VERB = re.compile(r"^(scan|fix_|forecast): ")
LONG = 240  # characters of a reason


def fixes_tried(model: nn.Module, batch: Batch, where: dict[str, Any]) -> dict[str, str]:
    """For every site of the tokens: yes, or why a remedy cannot act there. where: blocks= and stream=."""
    return {site: reason_of(partial(_acts, model, batch, site, where)) for site in TOKEN_SITES}


def _acts(model: nn.Module, batch: Batch, site: str, where: dict[str, Any]) -> str:
    with torch.no_grad(), untouched(model), _same_hooks(model), fix_(model, DeEscalate(1.0), at=site, **where):
        batch.run(model)
    return "yes"


@contextmanager
def _same_hooks(model: nn.Module) -> Iterator[None]:
    """Hooks that a refused trial may leave behind are taken away: what is tried next must meet the same model."""
    tables = [table for m in model.modules() for table in (m._forward_pre_hooks, m._forward_hooks)]
    before = [set(table) for table in tables]
    try:
        yield
    finally:
        for table, known in zip(tables, before, strict=True):
            for key in set(table) - known:
                del table[key]


def forecast_tried(model: nn.Module, batch: Batch, scan: Scan, where: dict[str, Any]) -> str:
    """Yes with the similarity that is forecast beside the one that was measured, by laws or samples; or why not."""

    def told() -> str:
        found = forecast(model, batch.kwargs or batch.args, **where)
        drawn = any(f"{DRAWS} samples" in text for text in found.assumed)
        ends = f"t_sim {float(found.t_sim[-1]):.3f} after block {found.depth}, measured {float(scan['t_sim'][-1]):.3f}"
        return f"yes, {'some steps by samples' if drawn else 'by laws'}: {ends}"

    return reason_of(told)


def reason_of(attempt: Callable[[], str]) -> str:
    """What an attempt says, or in one line why it failed. A checkup goes on whatever a verb does with a model."""
    try:
        return attempt()
    except Exception as error:
        return f"no: {one_line(error)}"


def told_of(error: Exception) -> str:
    """What an error says; one that nobody meant to raise is told as what it is."""
    if isinstance(error, DepthscopeError):
        return str(error)
    return f"it raised {type(error).__name__}: {error} (a defect of depthscope: please report it)"


def one_line(error: Exception) -> str:
    """The first sentences of a message, as long as a line may be."""
    words = _VERB.sub("", " ".join(told_of(error).split()))
    if len(words) <= LONG:
        return words
    return words[:LONG].rpartition(" ")[0] + " ..."
