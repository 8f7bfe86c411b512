"""Batches one after another, in one process or in several that each have their own: one tally of them all."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

from depthscope.errors import UsageError
from depthscope.scans.sequences import Place
from depthscope.scans.tally import Tally
from depthscope.traces.inputs import Batch
from depthscope.traces.nests import tensors_in

MORE, ENDED = "more", "ended"  # what a process tells the others before each turn; anything else is its error

Tallies = dict[str, Tally]  # by stream
Measure = Callable[[Batch, Place], Tallies]


def tallied(batches: Iterator[Batch], measure: Measure, across: Any = None, cut_over: Sequence[Any] = ()) -> Tallies:
    """The tally of every stream that all batches have. Of a batch nothing stays but its tally.

    across: a torch.distributed group, or "world"; each of its processes has its own batches, as many as the others,
    and all get the tally of all. cut_over: groups over which weights are cut. Processes of such a group run the model
    together or not at all: each runs the batches of all, and without across= they must be the same.
    """
    group = _group(across)
    if group is None:
        total: Tallies = {}
        for turn, batch in enumerate(batches):
            _check_same(batch, cut_over)
            total = _joined(total, measure(batch, (turn, 0)))
        return total
    members = set(dist.get_process_group_ranks(group))
    if any(len(members.intersection(dist.get_process_group_ranks(other))) > 1 for other in cut_over):

        def measure_all(batch: Batch, place: Place) -> Tallies:
            total: Tallies = {}
            for rank, other in enumerate(_gathered(batch, group)):
                total = _joined(total, measure(other, (place[0], rank)))
            return total

        return _in_step(batches, measure_all, group)
    own = _in_step(batches, measure, group)
    total = {}
    for part in _gathered(own, group):
        total = _joined(total, part)
    return total


def _check_same(batch: Batch, cut_over: Sequence[Any]) -> None:
    """Raise UsageError where processes that share weights have other inputs: one would wait for the others forever."""
    if not cut_over:
        return
    tensors = list(tensors_in((*batch.args, *batch.kwargs.values())))
    own = [(tuple(t.shape), float(t.double().sum())) for t in tensors if not t.is_complex()]
    for group in cut_over:
        if any(other != own for other in _gathered(own, group)):
            raise UsageError(
                "processes that share the weights of a model must give the same inputs; theirs differ. Give all the "
                'same, or let each scan its own by across="world".'
            )


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
