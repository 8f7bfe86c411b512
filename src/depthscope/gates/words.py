"""A gate in words: one line if all is well; where it is not, what failed, since which block, why, and what to do."""

import torch

from depthscope.gates.record import Gate, Judged
from depthscope.traces.streams import ALONE

ROWS = 13  # of the diversity, block by block


def lines(gate: Gate) -> list[tuple[str, str]]:
    """Lines, each with its style."""
    held = f" against {gate.against}" if gate.against else ""
    head = f"{'PASSES' if gate.passed else 'FAILS'}. {gate.model}, {gate.depth} blocks{held}"
    told = [(head, "bold green" if gate.passed else "bold red")]
    for check in gate.checks:
        mark, style = ("passes", "") if check.holds else ("FAILS ", "red")
        told.append((f"  {mark}  {check.title}: {check.says}", style))
    told += [(f"note: {note}", "yellow") for note in gate.notes]
    broken = {check.stream for check in gate.failed}
    for judged in gate.streams:
        if judged.stream in broken:
            told += _why(judged)
    return told


def _why(judged: Judged) -> list[tuple[str, str]]:
    """The verdict, what drives it, what to do, and the diversity block by block."""
    stream = "" if judged.stream == ALONE else f"{judged.stream}: "
    where = "" if judged.block is None else f"block: {judged.block}"
    driver = f"driver: {judged.driver}" if judged.driver else ""
    found = [(f"{stream}{judged.status.upper()}. {judged.text}", "bold")]
    found += [(words, "") for words in (where, driver, f"advice: {judged.advice}") if words]
    if not judged.diversity.isfinite().any():
        return found
    found.append(("diversity (share of the signal that differs between tokens) after each block:", "bold"))
    depth = len(judged.diversity) - 1
    for block in shown(depth):
        then = "" if judged.before is None else f"   before {float(judged.before[block]):.3g}"
        found.append((f"  {block:>{len(str(depth))}}  {float(judged.diversity[block]):<9.3g}{then}".rstrip(), ""))
    if len(shown(depth)) <= depth:
        found.append((f"  {len(shown(depth))} of {depth + 1} states; the JSON record has all of them.", "dim"))
    return found


def shown(depth: int) -> list[int]:
    """The states that are listed: all of a shallow model, else evenly spread ones with both ends."""
    if depth <= ROWS:
        return list(range(depth + 1))
    return sorted({round(float(at)) for at in torch.linspace(0, depth, ROWS)})
