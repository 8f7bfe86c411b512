"""Inputs that choose and inputs that judge: batches are split in two, or the rows of the only one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from depthscope.circuits.subject import Subject


def halves(subjects: Sequence[Subject]) -> tuple[list[Subject], list[Subject], str]:
    """Those that choose, those that judge, and what to say where they are the same."""
    if len(subjects) > 1:
        middle = (len(subjects) + 1) // 2
        return list(subjects[:middle]), list(subjects[middle:]), ""
    [only] = subjects
    rows = _rows(only)
    if rows < 2:
        return (
            [only],
            [only],
            "blocks were chosen and judged on the same inputs, because there is one sequence alone, or tensors that "
            "cannot be cut between sequences. Give held_out=",
        )
    middle = (rows + 1) // 2
    return [_cut(only, 0, middle, rows)], [_cut(only, middle, rows, rows)], ""


def _rows(subject: Subject) -> int:
    """Sequences of a batch whose tensors can be cut between them; 1 where the first axis holds tokens."""
    if subject.axis != 1:
        return 1
    sizes = {len(value) for value in _tensors(subject) if value.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


def _tensors(subject: Subject) -> list[Tensor]:
    values = (*subject.batch.args, *subject.batch.kwargs.values())
    return [value for value in values if isinstance(value, Tensor)]


def _cut(subject: Subject, begin: int, end: int, rows: int) -> Subject:
    def part(value: Any) -> Any:
        return value[begin:end] if isinstance(value, Tensor) and value.ndim and len(value) == rows else value

    batch = subject.batch
    args = tuple(map(part, batch.args))
    kwargs = {name: part(value) for name, value in batch.kwargs.items()}
    mask = None if batch.mask is None else batch.mask[begin:end]
    return replace(subject, batch=replace(batch, args=args, kwargs=kwargs, mask=mask))
