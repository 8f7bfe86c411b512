"""One cell measured: a round in which operators are counted, then the plain pass and both scans take turns."""

import re
from collections.abc import Callable
from dataclasses import replace
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
LONG = 2.0  # seconds of a round: noise is a small part of it
ONCE = 6.0  # seconds of a round: that operators are counted is a small part of it too
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
    """Times of `repeats` rounds, of two where a round takes longer than LONG, and of one where it takes ONCE.

    fixed: extra seconds per block of the smallest cell, for the scans above the aim. The round that counts operators
    comes first: it warms up what the others find warm. Where it takes ONCE, it is the only one.
    """
    model, inputs = subject(cell, device)
    sides = sides_of(model, inputs)
    counted = {side: Counting(now) for side in sides}
    left_out = ""
    times: dict[str, list[float]] = {side: [] for side in sides}
    for side, run in sides.items():
        start = now()
        with counted[side]:
            given = run()
        times[side].append(now() - start)
        left_out = left_out_of(given) if side == HEADS else left_out
        del given
    took = sum(map(sum, times.values()))
    if took < ONCE:
        times = {side: [] for side in sides}
        for _ in range(repeats if took < LONG else min(repeats, 2)):
            for side, run in sides.items():
                times[side].append(seconds(now, run))
    found = Measured(cell, times, left_out=left_out)
    above = [side for side in SIDES if found.above(side)] if fixed is not None else []
    return replace(found, parts={side: _parts(found, side, counted, (fixed or {})[side]) for side in above})


def left_out_of(found: Scan) -> str:
    """The sequences that a scan did not read, in its own words; nothing where it read all."""
    said = (LEFT_OUT.search(note) for note in found.notes)
    return "; ".join(one.group() for one in said if one)


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
