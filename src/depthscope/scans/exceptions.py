"""Massive tokens: where they are in a state."""

from dataclasses import dataclass

from torch import Tensor

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


def massive_in(times: Tensor, valid: Tensor | None) -> list[Seen]:
    """The massive tokens of sequences. times (s, n): their sizes, 0 of others. valid (s, n), where there is padding."""
    places = times.nonzero()
    if not len(places):
        return []
    found = tuple(places.T)
    shift = 0 if valid is None else (valid == 0).int().cumsum(-1)[found]
    return list(zip(places[:, 0].tolist(), (places[:, 1] - shift).tolist(), times[found].tolist(), strict=True))
