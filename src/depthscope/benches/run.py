"""bench(): all cells of a grid, the cheapest first, within a budget; nothing is dropped without a word."""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from depthscope.benches.cell import Cell
from depthscope.benches.clock import clock_called
from depthscope.benches.grid import ordered, smallest
from depthscope.benches.growth import growths
from depthscope.benches.machine import free_memory, operations_per_second, processor, threads_of_torch
from depthscope.benches.measure import ONCE, Clock, measured
from depthscope.benches.peak import can_be_read, peaks_of
from depthscope.benches.record import SIDES, Bench, Measured, NotMeasured, Peak
from depthscope.benches.subject import device_called
from depthscope.errors import UsageError, first_line

START = 6.0  # seconds for torch to be imported in a process of its own, roughly
ROOM = 0.8  # of the memory that is free
FEW = (2, 1)  # blocks in the place of many where time or memory would not suffice
KEPT = 0.1  # of the budget, for peak memory
FADES = 0.7  # what each cell leaves of the weight of those before it, in the forecast of the time of the next


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
    """Scan over plain forward in every cell. budget: seconds by the clock; memory: measure peaks too; on_cell: is told.

    Where the time that is left would not suffice for all cells to come, or memory, two blocks of a cell run, or one.
    Where that is too much too, the cell is listed as not measured, with the reason.
    """
    if not cells:
        raise UsageError("bench: there must be a cell to measure; got none. Name sizes, or --grid quick.")
    for name, value in (("repeats", repeats), ("threads", threads), ("budget", budget)):
        if value is not None and not value >= 1:  # NaN is neither
            raise UsageError(f"bench: {name} must be 1 or more; got {value}. Give a larger --{name}.")
    place = device_called(device)
    now = clock_called(clock, place)
    with threads_of_torch(threads):
        run = _Run(place, now, repeats, budget, on_cell)
        run.all(ordered(cells))
        peaks, notes = _peaks(run, memory)
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
        budget: float | None,
        on_cell: Callable[[str], None],
    ) -> None:
        self.place, self.now, self.repeats, self.on_cell = place, now, repeats, on_cell
        self.budget, self.end = budget or math.inf, now() + (budget or math.inf)
        self.found: list[Measured] = []
        self.missed: list[NotMeasured] = []
        self.smallest: dict[str, Measured] = {}  # by kind
        self.fixed: dict[str, float] = {}  # seconds of a round for each block of the smallest cell, by kind
        self.rate = operations_per_second(place)
        self.took = self.foreseen = 0.0  # seconds of the last cells, and what their sizes made expect
        self.known: dict[Cell, Measured] = {}  # cells that differ in depth alone share the few blocks that ran

    def all(self, cells: Sequence[Cell]) -> None:
        for kind in dict.fromkeys(cell.kind for cell in cells):
            self._start(kind)
        for number, cell in enumerate(cells, 1):
            chosen, why = self._chosen(cell, cells[number:])
            if why:
                self.missed.append(NotMeasured(cell, why))
                continue
            if chosen not in self.known:
                self.on_cell(f"{number} of {len(cells)}: {chosen}")
                found, why = self._tried(chosen)
                if found is None:
                    self.missed.append(NotMeasured(cell, why))
                    continue
                self.known[chosen] = found
            few = None if chosen == cell else chosen.depth
            self.found.append(replace(self.known[chosen], cell=cell, ran=few))

    def _chosen(self, cell: Cell, later: Sequence[Cell]) -> tuple[Cell, str]:
        """The cell, or as many blocks of it as leave time for one block of all later ones; or why none can run."""
        least = {replace(one, depth=min(FEW)) for one in later} - set(self.known)
        reserved = KEPT * self.budget + sum(map(self.expected, least))
        for depth in (cell.depth, *(few for few in FEW if few < cell.depth)):
            chosen = replace(cell, depth=depth)
            if chosen in self.known or not self._too_large(chosen) + self.too_long(self.expected(chosen) + reserved):
                return chosen, ""
        return chosen, self._too_large(chosen) or self.too_long(self.expected(chosen))

    def _start(self, kind: str) -> None:
        """The smallest cell of a kind."""
        least = self.smallest[kind] = measured(smallest(kind), **self._how())
        self.fixed[kind] = sum(map(least.fastest, least.times)) / least.cell.depth

    def _tried(self, cell: Cell) -> tuple[Measured | None, str]:
        """What a cell costs, or why that is not known."""
        start = self.now()
        try:
            found = measured(cell, **self._how(), fixed=self._fixed(cell.kind))
        except (torch.OutOfMemoryError, MemoryError) as error:
            return None, f"memory ran out: {first_line(error)}"
        self.took = FADES * self.took + self.now() - start
        self.foreseen = FADES * self.foreseen + self._by_size(cell)
        return found, ""

    def _how(self) -> dict[str, Any]:
        return {"now": self.now, "device": self.place, "repeats": self.repeats}

    def _fixed(self, kind: str) -> dict[str, float]:
        """Extra seconds per block where there is next to nothing to compute."""
        least = self.smallest[kind]
        return {side: max(0.0, least.extra(side)) / least.cell.depth for side in SIDES}

    def expected(self, cell: Cell) -> float:
        """Seconds that a cell will take: by its size, and by how much longer those before it took."""
        return self._by_size(cell) * (self.took / self.foreseen if self.foreseen else 1.0)

    def _by_size(self, cell: Cell) -> float:
        """Its blocks at their least, and its work at the rate of products."""
        one = self.fixed[cell.kind] * cell.depth + cell.work / self.rate
        return one * (1 if one > ONCE else self.repeats + 1)  # one to count

    def _too_large(self, cell: Cell) -> str:
        free = free_memory(self.place)
        if free is not None and cell.memory > ROOM * free:
            return f"it may take {cell.memory / 2**30:.1f} GiB; {free / 2**30:.1f} are free"
        return ""

    def too_long(self, expected: float) -> str:
        if math.isinf(self.end):
            return ""
        left = self.end - self.now()
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
            notes.append(f"peak memory was not measured ({one.as_run}): {why}")
            continue
        run.on_cell(f"peak memory: {one.as_run}")
        peaks.append(peaks_of(one.as_run, run.place, torch.get_num_threads()))
    return peaks, notes


def _small_to_large(found: Sequence[Measured]) -> list[Measured]:
    """Of each kind the cell that takes the least memory, one in the middle, and the one that takes the most."""
    chosen = []
    for kind in dict.fromkeys(one.cell.kind for one in found):
        by_memory = sorted((one for one in found if one.cell.kind == kind), key=lambda one: one.as_run.memory)
        chosen += [by_memory[i] for i in sorted({0, len(by_memory) // 2, len(by_memory) - 1})]
    return chosen


def _version() -> str:
    import depthscope

    return depthscope.__version__
