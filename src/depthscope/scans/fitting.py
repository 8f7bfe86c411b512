"""The parts of a scan that was read from a file must fit together, as those of one that was made do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from depthscope.errors import RecordError

if TYPE_CHECKING:
    from depthscope.scans.record import Scan

Shape = tuple[int | None, ...]  # None: any number
Shaped = Iterator[tuple[str, Tensor, Shape]]


def check_fit(scan: "Scan") -> None:
    """Raise RecordError unless every number is there for every state, block and head."""
    for what, least in (("depth", 1), ("tokens", 1), ("width", 1), ("samples", 1), ("batches", 1)):
        _demand(getattr(scan, what) >= least, what, f"{least} or more", getattr(scan, what))
    kind = getattr(torch, scan.dtype, None)
    _demand(isinstance(kind, torch.dtype) and kind.is_floating_point, "dtype", "a float type of torch", scan.dtype)
    _demand("block" in scan.steps, "steps", "with those of the block", [*scan.steps])
    for step, row in scan.steps.items():
        _demand({"gain", "bias_share"} <= {*row}, f"steps[{step!r}]", "with gain and bias_share", [*row])
    for where, values, shape in _shapes(scan):
        fits = values.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
        _demand(fits, where, f"of shape {shape}, None for any number", tuple(values.shape))
    counts = scan.head_counts
    fits = all(count >= 0 for count in counts) and (not scan.heads or len(counts) == scan.depth)
    _demand(fits, "head_counts", f"a number for each of {scan.depth} blocks", counts)
    sizes = scan.sizes
    fits = not sizes or (len(sizes) == scan.depth + 1 and all(len(one) == 2 for one in sizes))
    _demand(fits, "sizes", f"tokens and width of {scan.depth + 1} states", sizes)
    blocks = [one.block for one in scan.massive]
    _demand(all(0 <= block <= scan.depth for block in blocks), "massive", f"in blocks 0 to {scan.depth}", blocks)


def _shapes(scan: "Scan") -> Shaped:
    states: Shape = (scan.depth + 1,)
    blocks: Shape = (scan.depth,)
    tables = {"states": states, "spread": states, "sequences": (*states, None), "heads": (*blocks, None)}
    for table, shape in tables.items():
        for name, values in getattr(scan, table).items():
            yield f"{table}[{name!r}]", values, shape
    for step, row in scan.steps.items():
        for name, values in row.items():
            yield f"steps[{step!r}][{name!r}]", values, blocks
    for name, values in scan.gradients.items():
        yield f"gradients[{name!r}]", values, states if len(values.shape) == 1 and len(values) > scan.depth else blocks
    if scan.without_dropout is not None:
        yield "without_dropout", scan.without_dropout, states


def _demand(holds: object, where: str, what: str, got: object) -> None:
    if not holds:
        raise RecordError(f"Scan.{where}: must be {what}; got {str(got)[:60]}. The file is damaged.")
