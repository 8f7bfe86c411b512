"""What the extra time of scans is made of, over several cells together."""

from collections.abc import Sequence
from dataclasses import dataclass

from depthscope.benches.record import Measured


@dataclass(frozen=True)
class Shares:
    """Parts of the extra seconds of some cells, and what a scan does beyond a pass for each number of a state.

    products: of matrices, with decompositions. fixed is part of the others. GFLOP, GB, operators: for each block and a
    million numbers of the state at its end.
    """

    products: float
    memory: float
    calls: float
    outside: float
    fixed: float
    gflop: float
    gb: float
    operators: float


def shares(cells: Sequence[Measured], side: str) -> Shares:
    """Of cells that were counted for this side: seconds, operations and bytes are added up, and then compared."""
    parts = [one.parts[side] for one in cells]
    extra = sum(one.extra(side) for one in cells)
    runs = [one.as_run for one in cells]
    millions = sum(run.depth * run.batch * run.tokens * run.width for run in runs) / 1e6
    return Shares(
        products=sum(one.products + one.decompositions for one in parts) / extra,
        memory=sum(one.memory for one in parts) / extra,
        calls=sum(one.calls for one in parts) / extra,
        outside=sum(one.outside for one in parts) / extra,
        fixed=sum(one.fixed for one in parts) / extra,
        gflop=sum(one.flops for one in parts) / 1e9 / millions,
        gb=sum(one.bytes for one in parts) / 1e9 / millions,
        operators=sum(one.operators for one in parts) / millions,
    )
