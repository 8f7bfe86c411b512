"""Batches one after another, in one process or in several that each have their own: one tally of them all."""

from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from depthscope.errors import UsageError
from depthscope.scans.sequences import Place
from depthscope.scans.tally import Tally
from depthscope.traces.inputs import Batch

MORE, ENDED = "more", "ended"  # what a process tells the others before each turn; anything else is its error

Tallies = dict[str, Tally]  # by stream
Measure = Callable[[Batch, Place], Tallies]


def tallied(batches: Iterator[Batch], measure: Measure, across: Any = None) -> Tallies:
    """The tally of every stream that all batches have. Of a batch nothing stays but its tally.

    across: a torch.distributed group, or "world"; each of its processes has its own batches, as many as the others,
    and all get the tally of all.
    """
    group = _group(across)
    if group is None:
        total: Tallies = {}
        for turn, batch in enumerate(batches):
            total = _joined(total, measure(batch, (turn, 0)))
        return total
    own = _in_step(batches, measure, group)
    total = {}
    for part in _gathered(own, group):
        total = _joined(total, part)
    return total


def _in_step(batches: Iterator[Batch], measure: Measure, group: Any) -> Tallies:
    """The tally of the batches of this process. Before each turn all tell whether they go on, so that none waits."""
    total: Tallies = {}
    rank, turn = dist.get_rank(group), 0
    failed: Exception | None = None
    while True:
        batch = None
        try:
            batch = next(batches, None) if failed is None else None
        except Exception as error:
            failed = error
        said = MORE if batch is not None else ENDED if failed is None else f"{type(failed).__name__}: {failed}"
        words = _gathered(said, group)
        if failed is not None:
            raise failed
        _check(words, turn)
        if batch is None:
            return total
        try:
            total = _joined(total, measure(batch, (turn, rank)))
        except Exception as error:
            failed = error
        turn += 1


def _check(words: list[str], turn: int) -> None:
    """Raise UsageError where a process failed, or has no batch while others have one."""
    for rank, word in enumerate(words):
        if word not in (MORE, ENDED):
            raise UsageError(f"every process must measure its batches; process {rank} raised {word}")
    if len(set(words)) > 1:
        ended = ", ".join(str(rank) for rank, word in enumerate(words) if word == ENDED)
        raise UsageError(
            f"every process must give the same number of batches; process {ended} ended after {turn}, and others have "
            "more. Cut the loader to equal parts (DistributedSampler does, and drop_last=True)."
        )


def _joined(total: Tallies, part: Tallies) -> Tallies:
    """Both added, of the streams that both have."""
    return {name: total[name] + part[name] for name in total if name in part} if total else part


def _gathered(own: Any, group: Any) -> list[Any]:
    """What every process of the group has, by rank."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def _group(across: Any) -> Any:
    """The process group that is meant; None for a scan of this process alone."""
    if across is None:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        raise UsageError(
            "across: the processes must know each other; torch.distributed has no process group. Start them with "
            "torchrun, and call torch.distributed.init_process_group() first."
        )
    group = dist.group.WORLD if across == "world" else across
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(
            f'across: must be "world" or a torch.distributed group that this process is in; got {across!r}. '
            "Give dist.new_group(ranks) of ranks that all call scan."
        )
    return group
