"""Massive tokens: where they are in a state."""

from dataclasses import dataclass

from depthscope.metrics.chunks import Chunk
from depthscope.metrics.massive import massive, sizes

Seen = tuple[int, int, float]  # sequence, position (padding not counted), norm over the median norm


@dataclass(frozen=True)
class Massive:
    """Tokens at one position of one state that are far larger than the others of their sequences.

    block 0 is the input of block 1; position counts tokens and not padding; times: mean over these sequences of the
    token's norm over the median norm.
    """

    block: int
    position: int
    sequences: int
    times: float


def massive_in(chunk: Chunk, first: int) -> list[Seen]:
    """The massive tokens of a chunk whose first sequence has the number `first`."""
    found = chunk.once(massive)
    if not found.any():
        return []
    places = found.nonzero()
    shift = 0 if chunk.valid is None else (~chunk.valid.squeeze(-1)).int().cumsum(-1)[found]
    position = places[:, 1] - shift
    times = chunk.once(sizes)[found]
    return list(zip((places[:, 0] + first).tolist(), position.tolist(), times.tolist(), strict=True))
