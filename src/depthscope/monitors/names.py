"""The names under which a look is logged: they sort by metric and block."""

from typing import Any, get_args

from torch import Tensor

from depthscope.scans.record import Scan
from depthscope.scans.verdict import Status

PREFIX = "depthscope"
VERDICTS: tuple[str, ...] = get_args(Status)  # from good to bad: their place is the number that loggers get


def curves_of(scan: Scan, metrics: tuple[str, ...]) -> dict[str, Tensor]:
    """The curves of a scan over its blocks, by name; each part of a pair under its own."""
    found: dict[str, Tensor] = {}
    for name in metrics:
        values: Any = scan[name]
        parts = values if isinstance(values, tuple) else (values,)
        found |= {name if len(parts) == 1 else f"{name}_{i + 1}": part for i, part in enumerate(parts)}
    return found


def flat(scan: Scan, curves: dict[str, Tensor]) -> dict[str, float]:
    """depthscope/t_div/block_07 and so on; block_00 is the input of block 1. The verdict is its place in VERDICTS."""
    digits = max(2, len(str(scan.depth)))
    values = {
        f"{PREFIX}/{name}/block_{block:0{digits}d}": value
        for name, curve in curves.items()
        for block, value in enumerate(curve.tolist(), start=scan.depth + 1 - len(curve))
    }
    verdict = scan.verdict
    return values | {
        f"{PREFIX}/diversity": verdict.diversity,
        f"{PREFIX}/verdict": float(VERDICTS.index(verdict.status)),
    }
