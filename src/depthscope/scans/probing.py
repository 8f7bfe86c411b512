"""Blocks whose mixing was not seen, probed: the numbers of the matrix that carries values from token to token."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.scans.attention_reader import AttentionReader
from depthscope.scans.reading import Reading
from depthscope.scans.together import of_sequences
from depthscope.traces.attention import AttentionSeen
from depthscope.traces.causality import batch_of
from depthscope.traces.inputs import Batch
from depthscope.traces.log import Attention
from depthscope.traces.signature import tensors_in
from depthscope.traces.value_probe import Carried, ValueProbe

MOVED = 512  # tokens of all sequences together that are moved, at most; but one sequence is whole
LONGEST = 256  # tokens: every one of them is moved once
ALIKE = 1e-3  # channels whose matrices differ by less, of the largest entry, are one head
NOISE = 1e-6  # of the largest entry: no weight at all
HEADS = 64  # more matrices than these are averaged over channels

PROBED = (
    "tokens are mixed in a way that shows no matrix, in {found} of {blocks} blocks; it was probed by moving values, "
    "token by token, in {few} of {sequences} sequences: the numbers of heads are of the matrix that carries values "
    "from token to token"
)
AVERAGED = "every channel is mixed by its own matrix: the numbers are those of the mean matrix"


def probe(model: nn.Module, batch: Batch, reading: Reading, metrics: list[Any]) -> list[str]:
    """Put what can be probed into the log of a reading; what to tell of it. [] where nothing could be."""
    wanted = {i for i in range(reading.depth) if reading.attention(i) is None}
    source = reading.blocks[0].source
    if len(source.shape) != 3 or source.shape[1] > LONGEST:
        return []
    rows = _rows(batch, source.axis)[: max(1, MOVED // source.shape[1])]
    try:
        found = [_carried(model, batch, reading, wanted, row) for row in rows]
    except Exception:  # a model that minds several sequences, or one alone: nothing is known of its mixing
        return []
    probed = [i for i in wanted if found and all(i in one for one in found)]
    averaged = False
    reader = AttentionReader(metrics, None)
    for i in probed:
        matrices, mean = _heads([one[i].M for one in found])
        averaged |= mean
        block, width = reading.blocks[i], source.shape[-1]
        seen = [_kind(M) for M in matrices]
        kind = "self" if all(one.kind == "self" for one in seen) else "mixing"
        tokens = [one[i].X[None] if one[i].X.shape[-1] == width else None for one in found]
        with torch.no_grad():
            numbers = [reader(replace(one, kind=kind), X) for one, X in zip(seen, tokens, strict=True)]
            reader.finish()
        together = of_sequences([one for one in numbers if one is not None])
        reading.log.attentions.append(Attention(block.name, block.start, source.shape[1], together, kind))
    if not probed:
        return []
    told = PROBED.format(found=len(probed), blocks=reading.depth, few=len(rows), sequences=reading.samples)
    return [told, *([AVERAGED] if averaged else [])]


def _carried(model: nn.Module, batch: Batch, reading: Reading, wanted: set[int], row: int) -> dict[int, Carried]:
    """What the blocks carry in one sequence of the batch, which runs alone."""
    size = batch_of(1, batch.args, batch.kwargs)

    def cut(value: Any) -> Any:
        return value[row : row + 1] if isinstance(value, Tensor) and value.ndim and len(value) == size else value

    args, kwargs = tuple(map(cut, batch.args)), {name: cut(value) for name, value in batch.kwargs.items()}
    n = reading.blocks[0].source.shape[1]
    places = list(range(n)) if batch.mask is None else batch.mask[row].nonzero().flatten().tolist()
    return ValueProbe(model, [b.paths for b in reading.blocks], wanted, args, kwargs).carried(places)


def _rows(batch: Batch, axis: int | None) -> list[int]:
    """The sequences; none where the inputs do not tell which axis is the batch."""
    size = batch_of(axis or 0, batch.args, batch.kwargs)
    square = any(x.ndim > 1 and x.shape[0] == x.shape[1] == size > 1 for x in tensors_in((batch.args, batch.kwargs)))
    return [] if axis != 1 or square else list(range(size))


def _heads(found: list[Tensor]) -> tuple[list[Tensor], bool]:
    """M (h, n, n) of each sequence, one for each group of neighbouring channels with one matrix; or the mean of all.

    found: M (d, n, n) of each sequence.
    """
    sizes = [float(M.abs().max()) for M in found]
    found = [torch.where(M.abs() > NOISE * size, M, 0.0) for M, size in zip(found, sizes, strict=True)]
    d = len(found[0])
    for h in (h for h in range(1, min(HEADS, d - 1) + 1) if d % h == 0):
        groups = [M.unflatten(0, (h, -1)) for M in found]
        apart = [float((one - one[:, :1]).abs().max()) for one in groups]
        if all(far <= ALIKE * size for far, size in zip(apart, sizes, strict=True)):
            return [one.mean(1) for one in groups], False
    return [M.mean(0, keepdim=True) for M in found], d > 1


def _kind(M: Tensor) -> AttentionSeen:
    """Attention where all rows are probabilities, else mixing; M (h, n, n) -> P (1, h, n, n)."""
    n = M.shape[-1]
    sums = M.sum(-1, keepdim=True)
    probable = float((sums - 1).abs().max()) < 1e-3 and float(M.min()) > -ALIKE / math.sqrt(n)
    P = M.clamp_min(0.0) / sums if probable else M
    return AttentionSeen(n, n, P=P[None], kind="self" if probable else "mixing")
