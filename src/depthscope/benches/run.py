"""bench(): all cells of a grid, the cheapest first, within a budget; nothing is dropped without a word."""

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from depthscope.benches.cell import Cell
from depthscope.benches.clock import clock_called
from depthscope.benches.grid import ordered, smallest
from depthscope.benches.growth import growths
from depthscope.benches.machine import free_memory, operations_per_second, processor, threads_of_torch
from depthscope.benches.measure import Clock, measured
from depthscope.benches.peak import can_be_read, peaks_of
from depthscope.benches.record import SIDES, Bench, Measured, NotMeasured, Peak
from depthscope.benches.subject import device_called
from depthscope.errors import UsageError, first_line

START = 6.0  # seconds for torch to be imported in a process of its own, roughly
ROOM = 0.8  # of the memory that is free
SHALLOW = 2  # blocks in the place of many where time would not suffice: every block costs what the others do
KEPT = 0.3  # of the budget, for them
OFF = 20.0  # a forecast of time that is off by more than this is no guide to the next one


def bench(
    cells: Sequence[Cell],
    *,
    device: str = "cpu",
    threads: int | None = None,
    repeats: int = 5,
    clock: str = "wall",
    budget: float | None = None,
    memory: bool = True,
    on_cell: Callable[[str], None] = lambda words: None,
) -> Bench:
    """Scan over plain forward in every cell. budget: seconds; memory: measure peaks too; on_cell: told what is next.

    Where time or memory would not suffice, a cell is listed as not measured, with the reason; beside it stands what two
    of its blocks cost, if there is time for that.
    """
    if not cells:
        raise UsageError("bench: there must be a cell to measure; got none. Name sizes, or --grid quick.")
    for name, value in (("repeats", repeats), ("threads", threads), ("budget", budget)):
        if value is not None and value < 1:
            raise UsageError(f"bench: {name} must be 1 or more; got {value}. Give a larger --{name}.")
    place = device_called(device)
    now = clock_called(clock, place)
    end = None if budget is None else time.perf_counter() + budget
    with threads_of_torch(threads):
        run = _Run(place, now, repeats, end, 0.0 if budget is None else KEPT * budget, on_cell)
        run.all(ordered(cells))
        run.kept = 0.0
        peaks, notes = _peaks(run, memory)
        run.few_blocks()
        return Bench(
            depthscope=_version(),
            torch=torch.__version__,
            processor=processor(),
            device=str(place),
            threads=torch.get_num_threads(),
            clock=clock,
            repeats=repeats,
            cells=run.found,
            not_measured=run.missed,
            smallest=list(run.smallest.values()),
            growth=growths(run.found),
            peaks=peaks,
            notes=notes,
        )


class _Run:
    """The cells one after another, and what is known of the time that the next will take."""

    def __init__(
        self,
        place: torch.device,
        now: Clock,
        repeats: int,
        end: float | None,
        kept: float,
        on_cell: Callable[[str], None],
    ) -> None:
        self.place, self.now, self.repeats, self.on_cell = place, now, repeats, on_cell
        self.end, self.kept = end, kept  # kept: seconds that only cells of few blocks may use
        self.found: list[Measured] = []
        self.missed: list[NotMeasured] = []
        self.smallest: dict[str, Measured] = {}  # by kind
        self.fixed: dict[str, float] = {}  # seconds of a round of the smallest cell, by kind
        self.rate = operations_per_second(place)
        self.off = 1.0  # how much longer the cell before took than was foreseen

    def all(self, cells: Sequence[Cell]) -> None:
        for number, cell in enumerate(cells, 1):
            self._start(cell.kind)
            why = self._too_dear(cell)
            if why:
                self.missed.append(NotMeasured(cell, why))
                continue
            self.on_cell(f"{number} of {len(cells)}: {cell}")
            self._measure(cell)

    def few_blocks(self) -> None:
        """What the first blocks cost of cells that were not measured; cells that differ in depth alone share it."""
        known: dict[Cell, Measured | None] = {}
        for i, one in enumerate(self.missed):
            few = replace(one.cell, depth=min(SHALLOW, one.cell.depth))
            if few not in known and not self._too_dear(few):
                self.on_cell(f"{SHALLOW} blocks of {one.cell}")
                known[few] = self._tried(few)[0]
            self.missed[i] = replace(one, shallow=known.get(few))

    def _start(self, kind: str) -> None:
        """The smallest cell of a kind, once."""
        if kind not in self.smallest:
            start = time.perf_counter()
            self.smallest[kind] = measured(smallest(kind), **self._how())
            self.fixed[kind] = (time.perf_counter() - start) / self.rounds

    @property
    def rounds(self) -> int:
        return self.repeats + 1  # one to count

    def _measure(self, cell: Cell) -> None:
        found, why = self._tried(cell)
        if found is None:
            self.missed.append(NotMeasured(cell, why))
        else:
            self.found.append(found)

    def _tried(self, cell: Cell) -> tuple[Measured | None, str]:
        """What a cell costs, or why that is not known."""
        start = time.perf_counter()
        try:
            found = measured(cell, **self._how(), fixed=self._fixed(cell.kind))
        except (torch.OutOfMemoryError, MemoryError) as error:
            return None, f"memory ran out: {first_line(error)}"
        took = time.perf_counter() - start
        self.off = min(OFF, max(1 / OFF, self.off * took / self.expected(cell)))
        return found, ""

    def _how(self) -> dict[str, Any]:
        return {"now": self.now, "device": self.place, "repeats": self.repeats}

    def _fixed(self, kind: str) -> dict[str, float]:
        """Extra seconds per block where there is next to nothing to compute."""
        least = self.smallest[kind]
        return {side: max(0.0, least.extra(side)) / least.cell.depth for side in SIDES}

    def expected(self, cell: Cell) -> float:
        """Seconds that a cell will take: its blocks at their least, its work at the rate of products, and what the
        cell before took longer."""
        fixed = self.fixed[cell.kind] * cell.depth / self.smallest[cell.kind].cell.depth
        return self.off * self.rounds * (fixed + cell.work / self.rate)

    def _too_dear(self, cell: Cell) -> str:
        """Why a cell cannot be measured: memory, or the time that is left."""
        free = free_memory(self.place)
        if free is not None and cell.memory > ROOM * free:
            return f"it may take {cell.memory / 2**30:.1f} GiB; {free / 2**30:.1f} are free"
        return self.too_long(self.expected(cell))

    def too_long(self, expected: float) -> str:
        if self.end is None:
            return ""
        left = self.end - self.kept - time.perf_counter()
        return f"it would take about {expected:.0f} s; {max(0.0, left):.0f} are left" if expected > left else ""


def _peaks(run: _Run, wanted: bool) -> tuple[list[Peak], list[str]]:
    """Peak memory of cells of each kind that were measured; and why where there is none."""
    if not wanted or not run.found:
        return [], []
    if not can_be_read(run.place):
        return [], [f"peak memory was not measured: it cannot be read on {run.place} of {platform.system()}"]
    peaks, notes = [], []
    for one in _small_to_large(run.found):
        expected = 3 * START + sum(2 * one.fastest(side) for side in one.times)
        why = run.too_long(expected)
        if why:
            notes.append(f"peak memory was not measured ({one.cell}): {why}")
            continue
        run.on_cell(f"peak memory: {one.cell}")
        peaks.append(peaks_of(one.cell, run.place, torch.get_num_threads()))
    return peaks, notes


def _small_to_large(found: Sequence[Measured]) -> list[Measured]:
    """Of each kind the cell that takes the least memory, one in the middle, and the one that takes the most."""
    chosen = []
    for kind in dict.fromkeys(one.cell.kind for one in found):
        by_memory = sorted((one for one in found if one.cell.kind == kind), key=lambda one: one.cell.memory)
        chosen += [by_memory[i] for i in sorted({0, len(by_memory) // 2, len(by_memory) - 1})]
    return chosen


def _version() -> str:
    import depthscope

    return depthscope.__version__
