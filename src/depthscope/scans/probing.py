"""Blocks whose mixing was not seen, probed: the numbers of the matrix that carries values from token to token."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.scans.readers import AttentionReader
from depthscope.scans.reading import Reading
from depthscope.traces.attention import AttentionSeen
from depthscope.traces.causality import batch_of
from depthscope.traces.inputs import Batch
from depthscope.traces.log import Attention
from depthscope.traces.signature import tensors_in
from depthscope.traces.value_probe import Carried, ValueProbe

LONGEST = 256  # tokens: every one of them is moved once
ALIKE = 1e-3  # channels whose matrices differ by less, of the largest entry, are one head
NOISE = 1e-6  # of the largest entry: no weight at all
HEADS = 64  # more matrices than these are averaged over channels

PROBED = (
    "tokens are mixed in a way that shows no matrix, in {found} of {blocks} blocks; it was probed by moving values, "
    "token by token, in one sequence: the numbers of heads are of the matrix that carries values from token to token"
)
AVERAGED = "every channel is mixed by a matrix of its own: the numbers are of their mean"


def probe(model: nn.Module, batch: Batch, reading: Reading, metrics: list[Any]) -> list[str]:
    """Put what can be probed into the log of a reading; what to tell of it. [] where nothing could be."""
    wanted = {i for i in range(reading.depth) if reading.attention(i) is None}
    source = reading.blocks[0].source
    sequence = _one_sequence(batch, source.axis)
    if sequence is None or len(source.shape) != 3 or source.shape[1] > LONGEST:
        return []
    row, args, kwargs = sequence
    mask = batch.mask
    places = list(range(source.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
    try:
        found = ValueProbe(model, [b.paths for b in reading.blocks], wanted, args, kwargs).carried(places)
    except Exception:  # a model that minds several sequences, or one alone: nothing is known of its mixing
        return []
    averaged = False
    reader = AttentionReader(metrics, None)
    for i, one in found.items():
        M, mean = _heads(one)
        averaged |= mean
        seen = _kind(M)
        with torch.no_grad():
            numbers = reader(seen, one.X[None] if one.X.shape[-1] == source.shape[-1] else None)
        block = reading.blocks[i]
        reading.log.attentions.append(Attention(block.name, block.start, seen.queries, numbers, seen.kind))
    if not found:
        return []
    return [PROBED.format(found=len(found), blocks=reading.depth), *([AVERAGED] if averaged else [])]


def _one_sequence(batch: Batch, axis: int | None) -> tuple[int, tuple, dict[str, Any]] | None:
    """The sequence with most tokens, alone; None where the inputs do not tell which axis is the batch."""
    size = batch_of(axis or 0, batch.args, batch.kwargs)
    if axis != 1 or any(x.ndim > 1 and x.shape[0] == x.shape[1] == size > 1 for x in _tensors(batch)):
        return None
    row = 0 if batch.mask is None else int(batch.mask.sum(-1).argmax())

    def cut(value: Any) -> Any:
        return value[row : row + 1] if isinstance(value, Tensor) and value.ndim and len(value) == size else value

    return row, tuple(map(cut, batch.args)), {name: cut(value) for name, value in batch.kwargs.items()}


def _tensors(batch: Batch) -> Iterable[Tensor]:
    return tensors_in((batch.args, batch.kwargs))


def _heads(one: Carried) -> tuple[Tensor, bool]:
    """M (h, n, n), one for each group of neighbouring channels with one matrix; or the mean of all (1, n, n)."""
    M = one.M
    largest = float(M.abs().max())
    M = torch.where(M.abs() > NOISE * largest, M, 0.0)
    for h in range(1, min(HEADS, len(M) - 1) + 1):
        if len(M) % h == 0:
            groups = M.unflatten(0, (h, -1))
            if float((groups - groups[:, :1]).abs().max()) <= ALIKE * largest:
                return groups.mean(1), False
    return M.mean(0, keepdim=True), len(M) > 1


def _kind(M: Tensor) -> AttentionSeen:
    """Attention where all rows are probabilities, else mixing; M (h, n, n) -> P (1, h, n, n)."""
    n = M.shape[-1]
    sums = M.sum(-1, keepdim=True)
    probable = float((sums - 1).abs().max()) < 1e-3 and float(M.min()) > -ALIKE / math.sqrt(n)
    P = M.clamp_min(0.0) / sums if probable else M
    return AttentionSeen(n, n, P=P[None], kind="self" if probable else "mixing")
