"""Which tokens of a stream are padding: what its own attention leaves unseen decides, and the masks among the inputs.

A mask belongs to the stream whose tokens it counts. One for samples of sound, pixels, or the tokens of another stream
is left aside; what the model made of it shows in attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.errors import MaskError
from depthscope.traces.unseen_keys import KeysUnseen, agreed

READ_OFF = "padding was found by looking at attention: keys that no query sees are not counted"
HANDED = "padding is what the mask says which the model hands to its blocks"


def left_aside(mask: Tensor) -> str:
    """The note on a mask that counts the tokens of others."""
    return f"the mask {tuple(mask.shape)} among the inputs counts other tokens and was left aside"


@dataclass(frozen=True, eq=False)
class Padding:
    """mask (B, n), True where a token counts, or None where all do; a note where a reader should know."""

    mask: Tensor | None
    note: str = ""


def padding_of(
    named: Tensor | None, own: Sequence[KeysUnseen], others: Sequence[KeysUnseen], shape: tuple[int, ...]
) -> Padding:
    """The padding of a stream of tokens (B, n).

    named: the mask among the inputs, True where a token counts. own: the self-attentions of this stream; others: those
    of other streams in the same pass.
    """
    batch, n = shape
    unseen = agreed(list(own), batch, n)
    fits = named is not None and tuple(named.shape) == (batch, n)
    if unseen is not None and bool(unseen.any()):
        if named is None or not fits:
            return Padding(~unseen, READ_OFF)
        if bool((unseen.to(named.device) & named).any()):
            return Padding(~unseen, f"{READ_OFF}; the mask among the inputs says otherwise and was left aside")
        return Padding(named)
    if named is None or bool(named.all()):
        return Padding(None)
    if unseen is None and not fits:
        raise MaskError(
            f"the padding mask must have one entry for each token, {shape}; the inputs hold one of "
            f"{tuple(named.shape)}, and no attention over these tokens shows what the model made of it. Pass mask= "
            "with 1 for a token and 0 for padding."
        )
    if fits and not (unseen is not None and _is_closed_by(named, others)):
        return Padding(named)
    return Padding(None, left_aside(named))


def _is_closed_by(mask: Tensor, found: Sequence[KeysUnseen]) -> bool:
    """Whether the attention of another stream leaves unseen what this mask calls padding."""
    each = (one.by_sequence(*mask.shape) for one in found)
    return any(unseen is not None and torch.equal(~unseen.to(mask.device), mask) for unseen in each)
