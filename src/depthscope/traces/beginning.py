"""The first tokens of a call, where they tell enough: a trial of them costs next to nothing.

Whoever hides the future from the first tokens hides it. Whoever does not may still hide it later: a prefix or a chunk
may fill a short sequence, so that "open" is said of whole sequences alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from depthscope.traces.causality import KNOWN, Causality, batch_of, causality, rows_to_try
from depthscope.traces.signature import length_of

SHORT = 16  # tokens


@dataclass(frozen=True)
class Beginning:
    """What the first tokens showed, and the call that they were tried with."""

    stream: Causality
    args: tuple
    kwargs: dict[str, Any]
    mask: Tensor | None


def tried_at_the_beginning(
    model: nn.Module,
    key: Any,
    blocks: Iterable[str],
    axis: int,
    args: tuple,
    kwargs: dict[str, Any],
    mask: Tensor | None,
) -> Beginning | None:
    """A trial of the first tokens of one sequence of each kind; None where they do not hide the future, or cannot run.

    mask (B, n): True where a token counts. What was found is kept for calls of the same signature, the key.
    """
    n, batch, rows = length_of(args, kwargs, axis), batch_of(axis, args, kwargs), rows_to_try(axis, args, kwargs, mask)
    fits = mask is None or (mask.shape == (batch, n) and bool(mask[rows, :SHORT].all()))
    if n <= SHORT or n == batch or not fits:
        return None

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        for dim, size in enumerate(value.shape):
            if size == n:
                value = value.narrow(dim, 0, SHORT)
            elif size == batch and dim < 2:
                value = value[rows] if dim == 0 else value[:, rows]
        return value

    few = tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}, cut(mask)
    known, place = KNOWN.setdefault(model, {}), (key, tuple(blocks), SHORT)
    if place not in known:
        try:
            known[place] = causality(model, blocks, axis, *few)
        except Exception:  # a model that minds short inputs: all tokens are tried then
            known[place] = Causality("unknown", "it does not run on the first tokens alone")
    stream = known[place]
    return Beginning(stream, *few) if stream.hides_future else None
