"""The Bench record: times of scans and of plain passes, cell by cell, with their spread, memory and growth."""

from dataclasses import dataclass, field, replace
from typing import Any

from depthscope.benches.cell import Cell
from depthscope.records import Record, since

PLAIN, STATES, HEADS = "plain", "states", "heads"
SIDES = (STATES, HEADS)  # a scan with attention=False, and one with attention statistics
AIMS = {STATES: 1.10, HEADS: 1.60}  # scan / plain forward
MEMORY_AIM = 1.05


@dataclass(frozen=True)
class Parts:
    """What the extra time of a scan is made of: seconds by class of operators, counted in one run of each side.

    calls: operators on less than 64 KiB, whose time is that of the call. outside: what no operator took (Python,
    hooks). fixed: blocks times the extra time per block of the smallest cell, where there is next to nothing to
    compute. bytes, flops, operators: of the scan less those of the pass.
    """

    products: float
    memory: float
    decompositions: float
    calls: float
    outside: float
    fixed: float
    bytes: int
    flops: int
    operators: int


@dataclass(frozen=True)
class Measured:
    """One cell: seconds of every round, for the plain pass and both scans, which took turns.

    ran: how many of its blocks ran, where there was no time or memory for all. A scan measures one state more than
    there are blocks, and some things once: with few blocks its ratio of states is too large for the whole.
    """

    cell: Cell
    times: dict[str, list[float]]
    parts: dict[str, Parts] = field(default_factory=dict)  # of the scans above the aim
    left_out: str = ""  # sequences that the scan did not read, in its own words
    ran: int | None = since(3, default=None)

    @property
    def as_run(self) -> Cell:
        """The cell with the blocks that ran."""
        return self.cell if self.ran is None else replace(self.cell, depth=self.ran)

    def fastest(self, side: str = PLAIN) -> float:
        return min(self.times[side])

    def ratio(self, side: str) -> float:
        """Fastest scan over fastest pass: noise only adds."""
        return self.fastest(side) / self.fastest()

    def spread(self, side: str) -> tuple[float, float]:
        """The lowest and the highest ratio of a round."""
        rounds = [scan / plain for scan, plain in zip(self.times[side], self.times[PLAIN], strict=True)]
        return min(rounds), max(rounds)

    def extra(self, side: str) -> float:
        """Seconds that a scan adds."""
        return self.fastest(side) - self.fastest()

    def above(self, side: str) -> bool:
        return self.ratio(side) > AIMS[side]

    def derived(self) -> dict[str, Any]:
        return {
            "ratio": {side: self.ratio(side) for side in SIDES},
            "spread": {side: self.spread(side) for side in SIDES},
        }


@dataclass(frozen=True)
class NotMeasured:
    """A cell that was asked for and not measured."""

    cell: Cell
    why: str


@dataclass(frozen=True)
class Peak:
    """Peak memory in MiB of a process of its own, for each side; how: what was read.

    once: what the first scan of a process loads, whatever its size; it is in all sides and so in no ratio.
    """

    cell: Cell
    mib: dict[str, float]
    once: float
    how: str

    def ratio(self, side: str) -> float:
        return self.mib[side] / self.mib[PLAIN]

    def derived(self) -> dict[str, Any]:
        return {"ratio": {side: self.ratio(side) for side in SIDES}}


@dataclass(frozen=True)
class Growth:
    """The extra seconds of a scan as a product of powers of the sizes, fitted on `cells` cells; r2 on the logs."""

    kind: str
    side: str
    exponents: dict[str, float]
    r2: float
    cells: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Bench(Record):
    """What scans cost over plain forward passes, on one machine."""

    FORMAT = "depthscope.bench"
    VERSION = 3

    depthscope: str  # version
    torch: str
    processor: str
    device: str
    threads: int
    clock: str
    repeats: int
    cells: list[Measured]
    not_measured: list[NotMeasured]
    smallest: list[Measured]  # one for each kind: where the fixed cost per block is read
    growth: list[Growth]
    peaks: list[Peak]
    notes: list[str] = field(default_factory=list)

    def at(self, cell: Cell) -> Measured | None:
        """What was measured in a cell."""
        return next((one for one in self.cells if one.cell == cell), None)

    def above(self, side: str) -> list[Measured]:
        """The cells whose ratio is above the aim, the worst first."""
        return sorted((one for one in self.cells if one.above(side)), key=lambda one: -one.ratio(side))

    def gist(self) -> str:
        return (
            f"{len(self.cells)} of {len(self.cells) + len(self.not_measured)} cells on {self.processor}, {self.device}"
        )

    def derived(self) -> dict[str, Any]:
        return {"aims": {**AIMS, "memory": MEMORY_AIM}}
