"""A batch of states, a few samples at a time: read once, measured many times, summed in float64."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_tokens
from depthscope.metrics.chunk import Chunk, Energies
from depthscope.metrics.room import Room
from depthscope.metrics.sums import is_narrow

SAFE = {torch.float64: 1e-75, torch.float32: 1e-6}  # squares of numbers above it, and below its inverse, are numbers
RANGE = 1e-10, 1e20  # of a mean square, for float32 to hold the squares
CHUNK = 1 << 19  # elements at a time: calls of functions cost little beside them, and memory stays flat


def power_of_two(x: Tensor) -> Tensor | None:
    """2^k (b,) next to the largest entry of each sample x (b, n, d); None when squares of all of them are safe.

    An accelerator is not asked whether they are.
    """
    on_cpu = x.device.type == "cpu"
    if on_cpu and x.dtype != torch.float64:
        return None
    size = x.abs().amax((-2, -1))
    least = SAFE[x.dtype]
    safe = (size > least) & (size < 1 / least) | (size == 0) | ~size.isfinite()
    return None if on_cpu and bool(safe.all()) else torch.where(safe, 1.0, torch.exp2(size.log2().floor()))


Formula = Callable[[Chunk], Tensor]  # -> (b,)


def chunks(X: Tensor, mask: Tensor | None, *, where: str) -> Iterator[Chunk]:
    """X (..., n, d) as chunks over its flattened batch."""
    check_tokens(X, where=where)
    keep = None if mask is None else check_mask(mask, X.shape[:-1], where=where).reshape(-1, X.shape[-2], 1)
    return pieces(X.detach().reshape(-1, *X.shape[-2:]), keep, Room())


def pieces(x: Tensor, valid: Tensor | None, room: Room) -> Iterator[Chunk]:
    """x (samples, n, d) as chunks; valid (samples, n, 1) or None. Each ends where the next one is asked for."""
    step = max(1, CHUNK // x[0].numel())
    if step >= len(x):
        yield chunk_of(x, valid, room)
    else:
        for i in range(0, len(x), step):
            yield chunk_of(x[i : i + step], None if valid is None else valid[i : i + step], room)
            room.clear()
    room.clear()


def chunk_of(x: Tensor, valid: Tensor | None, room: Room | None = None) -> Chunk:
    """In float32 where sums may be taken in it, and squares are well inside its range; in float64 elsewhere."""
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    x = x if valid is None else x.masked_fill(~valid, 0.0)
    if x.dtype == torch.float32 and is_narrow(x):
        scale = power_of_two(x)
        narrow = Chunk(x if scale is None else x / scale[:, None, None], valid, scale, room)
        if x.device.type != "cpu" or _in_range(narrow):
            return narrow
    x = x.double()
    scale = power_of_two(x)
    return Chunk(x if scale is None else x / scale[:, None, None], valid, scale, room)


def _in_range(chunk: Chunk) -> bool:
    size = chunk.scaled_energies.total / chunk.x[0].numel()
    return bool(((size > RANGE[0]) & (size < RANGE[1])).all())


def by_sample(formula: Formula, X: Tensor, mask: Tensor | None, *, where: str) -> Tensor:
    """A formula on every sample of X (..., n, d) -> (...)."""
    return torch.cat([formula(chunk) for chunk in chunks(X, mask, where=where)]).reshape(X.shape[:-2])


def energies(X: Tensor, mask: Tensor | None = None, *, where: str = "energies") -> Energies:
    """The two energies of X (..., n, d), over the tokens where mask (..., n) is True."""
    pairs = [chunk.energies for chunk in chunks(X, mask, where=where)]
    common, centred = (torch.cat(column).reshape(X.shape[:-2]) for column in zip(*pairs, strict=True))
    return Energies(common, centred)
