"""Signs of padding that nobody honours: a mask whose sense is not known, or the padding id at the ends of sequences."""

from typing import Any

from torch import Tensor, nn

from depthscope.errors import MaskError
from depthscope.traces.inputs import arguments_inside
from depthscope.traces.signature import tensors_in

NAMES = ("src_mask", "input_mask", "token_mask", "seq_mask", "valid_mask")  # and all with "pad" in them
RUN = 2  # padding ids in a row at an end of a sequence that are no chance


def suspicion(model: nn.Module, args: tuple, kwargs: dict[str, Any], shape: tuple[int, int], *, told: bool) -> str:
    """A note where all tokens (B, n) count and some look like padding; an error where nothing tells.

    told: whether attention over these tokens was seen, which looks at all of them.
    """
    name = "" if told else _mask_of_unknown_sense(model, args, kwargs, shape)
    if name:
        raise MaskError(
            f"{name} may be a padding mask, but no attention shows which of its tokens are left out. Pass mask= "
            "with 1 for a token and 0 for padding."
        )
    found = _padding_ids(model, args, kwargs, shape)
    if not found:
        return ""
    who = "attention looks at them" if told else "nothing shows whether attention looks at them"
    return (
        f"{found} tokens at the ends of sequences are the padding id, and {who}: they are counted. "
        "Pass mask= to leave them out"
    )


def _mask_of_unknown_sense(model: nn.Module, args: tuple, kwargs: dict[str, Any], shape: tuple[int, int]) -> str:
    """The name of an argument (B, n) that may be a mask of padding: two values, and a name that says so; else ""."""
    for name, value in arguments_inside(model, args, kwargs).items():
        if ("pad" in name or name in NAMES) and isinstance(value, Tensor) and tuple(value.shape) == shape:
            if not value.is_complex() and len(value.unique()) == 2:
                return name
    return ""


def _padding_ids(model: nn.Module, args: tuple, kwargs: dict[str, Any], shape: tuple[int, int]) -> int:
    """How many tokens at the ends of sequences are the padding id that the model declares; 0 for a few by chance."""
    pad = getattr(getattr(model, "config", None), "pad_token_id", None)
    if pad is None:
        embeddings = (m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding))
        pad = next((index for index in embeddings if index is not None), None)
    ids = next((x for x in tensors_in((args, kwargs)) if tuple(x.shape) == shape and not x.is_floating_point()), None)
    if pad is None or ids is None or ids.is_complex():
        return 0
    is_pad = (ids == pad).int()
    runs = (is_pad.cumprod(-1).sum(-1) + is_pad.flip(-1).cumprod(-1).sum(-1)).clamp(max=shape[1])
    return int(runs[runs >= RUN].sum())
