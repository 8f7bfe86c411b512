"""One cell measured: the plain pass and both scans take turns, then what the extra time is made of is counted."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from depthscope.benches.cell import Cell
from depthscope.benches.clock import seconds
from depthscope.benches.record import HEADS, PLAIN, SIDES, STATES, Measured, Parts
from depthscope.benches.subject import subject
from depthscope.benches.work import CLASSES, Counting
from depthscope.scans.record import Scan
from depthscope.scans.scan import scan

Clock = Callable[[], float]
LEFT_OUT = re.compile(r"[^;]*\bfrom \d+ of \d+ sequences")  # as a scan notes it


def sides_of(model: nn.Module, inputs: Any) -> dict[str, Callable[[], Any]]:
    """What takes turns: the pass without gradients, a scan of the states, and one with attention statistics."""

    @torch.no_grad()
    def plain() -> Any:
        return model(inputs)

    return {
        PLAIN: plain,
        STATES: lambda: scan(model, inputs, attention=False),
        HEADS: lambda: scan(model, inputs),
    }


def measured(
    cell: Cell, *, now: Clock, device: torch.device, repeats: int, fixed: dict[str, float] | None = None
) -> Measured:
    """Times of `repeats` rounds. fixed: extra seconds per block of the smallest cell, for the scans above the aim."""
    model, inputs = subject(cell, device)
    sides = sides_of(model, inputs)
    warm = {side: run() for side, run in sides.items()}
    left_out = left_out_of(warm[HEADS])
    del warm
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, run in sides.items():
            times[side].append(seconds(now, run))
    found = Measured(cell, times, left_out=left_out)
    above = [side for side in SIDES if found.above(side)] if fixed is not None else []
    if not above:
        return found
    counted = {side: _counted(sides[side], now) for side in (PLAIN, *above)}
    parts = {side: _parts(found, side, counted, (fixed or {})[side]) for side in above}
    return Measured(cell, times, parts, left_out)


def left_out_of(found: Scan) -> str:
    """The sequences that a scan did not read, in its own words; nothing where it read all."""
    said = (LEFT_OUT.search(note) for note in found.notes)
    return "; ".join(one.group() for one in said if one)


def _counted(run: Callable[[], Any], now: Clock) -> Counting:
    counting = Counting(now)
    with counting:
        run()
    return counting


def _parts(found: Measured, side: str, counted: dict[str, Counting], fixed: float) -> Parts:
    """The extra seconds by class of operators; the rest is outside of them.

    Counting slows a run down, so that operators may seem to take more than all of the extra time: then they share it.
    """
    scanned, plain, extra = counted[side], counted[PLAIN], found.extra(side)
    own = {name: max(0.0, scanned.seconds[name] - plain.seconds[name]) for name in CLASSES}
    inside = sum(own.values())
    shrunk = {name: took * min(1.0, extra / inside) if inside else 0.0 for name, took in own.items()}
    return Parts(
        **shrunk,
        outside=max(0.0, extra - inside),
        fixed=fixed * found.cell.depth,
        bytes=scanned.bytes - plain.bytes,
        flops=scanned.flops - plain.flops,
        operators=scanned.calls - plain.calls,
    )
