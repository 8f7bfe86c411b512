"""How the cost grows: powers of the sizes fitted to the extra time of a scan by least squares on logarithms."""

from collections.abc import Sequence

import numpy as np

from depthscope.benches.cell import Cell
from depthscope.benches.record import SIDES, Growth, Measured

SIZES = {"n": "tokens", "d": "width", "batch": "batch", "depth": "depth", "heads": "heads"}  # heads last


def growths(cells: Sequence[Measured]) -> list[Growth]:
    """One fit for each kind of model and each kind of scan, where there are cells enough; each as it was run, once."""
    fits: list[Growth] = []
    cells = list({one.as_run: one for one in cells}.values())
    for kind in dict.fromkeys(one.cell.kind for one in cells):
        for side in SIDES:
            points = [(one.as_run, one.extra(side)) for one in cells if one.cell.kind == kind]
            found = fitted(kind, side, points)
            fits += [found] if found else []
    return fits


def fitted(kind: str, side: str, points: Sequence[tuple[Cell, float]]) -> Growth | None:
    """extra = c n^a d^b batch^e depth^f heads^g by least squares on logs; None where cells are fewer than unknowns.

    A size that does not vary has no exponent. Nor has one that varies only together with those before it.
    """
    known = [(cell, extra) for cell, extra in points if extra > 0]
    notes = [f"{len(points) - len(known)} cells without extra time are left out"] if len(known) < len(points) else []
    columns = {name: np.log([getattr(cell, of) for cell, _ in known]) for name, of in SIZES.items()}
    names: list[str] = []
    matrix = np.ones((len(known), 1))
    for name, column in columns.items():
        wider = np.column_stack([matrix, column])
        if len(known) and np.linalg.matrix_rank(wider) == wider.shape[1]:
            matrix, names = wider, [*names, name]
        elif len(set(column)) > 1:
            notes.append(f"{name} varies only together with {', '.join(names)}: it has no exponent of its own")
    if not names or len(known) <= matrix.shape[1]:
        return None
    logs = np.log([extra for _, extra in known])
    solution = np.linalg.lstsq(matrix, logs, rcond=None)[0]
    left, total = np.square(logs - matrix @ solution).sum(), np.square(logs - logs.mean()).sum()
    r2 = 1 - float(left / total) if total > 0 else 1.0
    exponents = {name: float(power) for name, power in zip(names, solution[1:], strict=True)}
    return Growth(kind, side, exponents, r2, len(known), notes)
