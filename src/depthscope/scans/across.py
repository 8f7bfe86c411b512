"""Batches one after another, in one process or in several that each have their own: one tally of them all."""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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
        return _in_step(batches, lambda batch, place: measure(batch, (place[0], 0)), cut_over, same=True)
    members = set(dist.get_process_group_ranks(group))
    if any(len(members.intersection(dist.get_process_group_ranks(other))) > 1 for other in cut_over):

        def measure_all(batch: Batch, place: Place) -> Tallies:
            parts = enumerate(_gathered(batch, group))
            return reduce(_joined, [measure(other, (place[0], rank)) for rank, other in parts])

        return _in_step(batches, measure_all, [group])
    own = _in_step(batches, lambda batch, place: measure(batch, (place[0], dist.get_rank(group))), [group])
    return reduce(_joined, _gathered(own, group))


def _check_same(batch: Batch, cut_over: Sequence[Any]) -> None:
    """Raise UsageError where processes that share weights have other inputs: they would compute with a mixture."""
    own = [_print_of(tensor) for tensor in tensors_in((*batch.args, *batch.kwargs.values()))]
    for group in cut_over:
        if any(other != own for other in _gathered(own, group)):
            raise UsageError(
                "processes that share the weights of a model must give the same inputs; theirs differ. Give all of "
                'them the same inputs, or pass across="world".'
            )


def _print_of(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """The shape of a tensor and a hash of its numbers."""
    numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(tensor.shape), sha256(numbers).hexdigest()


def _in_step(batches: Iterator[Batch], measure: Measure, groups: Sequence[Any], *, same: bool = False) -> Tallies:
    """The tally of the batches of this process. Before each turn all tell whether they go on, so that none waits.

    same: all must have the same batches.
    """
    total: Tallies | None = None
    turn = 0
    failed: Exception | None = None
    while True:
        batch = None
        try:
            batch = next(batches, None) if failed is None else None
        except Exception as error:
            failed = error
        said = MORE if batch is not None else ENDED if failed is None else f"{type(failed).__name__}: {failed}"
        words = [word for group in groups for word in _gathered(said, group)]
        if failed is not None:
            raise failed
        _check(words, turn)
        if batch is None:
            return total or {}
        try:
            if same:
                _check_same(batch, groups)
            part = measure(batch, (turn, 0))
            total = part if total is None else _joined(total, part)
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
    """Both added, of the streams that both have; a model that sees one stream in some batches calls it otherwise."""
    both = [name for name in total if name in part]
    if not both:
        raise UsageError(
            f"every batch must run through the same streams; got {', '.join(total)} and then {', '.join(part)}. Scan "
            "the batches of each kind by themselves."
        )
    return {name: total[name] + part[name] for name in both}


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
