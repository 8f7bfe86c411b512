"""Whether a mask that was given means what we take it for: 1 for a token. In torch's own sense, True is padding.

Three witnesses are asked: the padding mask among the inputs, the model's first attention, which gives no weight to
padding, and the tokens themselves. A boolean mask of which none of them knows is doubtful when its sequences begin with
False and end with True: padding on the left, or the other sense.
"""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import MaskError
from depthscope.traces.attention import AttentionSeen, SdpaCall, attention_in
from depthscope.traces.inputs import Batch, padding_in
from depthscope.traces.operations import Operation
from depthscope.traces.survey import evaluated, hooks_away
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watcher

SILENT = 1e-6  # weight that is none
QUESTION = "Is it True for padding, as torch's key_padding_mask is? Then pass ~mask. "


def check_sense(model: nn.Module, batch: Batch) -> None:
    """Raise MaskError, with the question, where mask= of this batch marks padding, or may do so."""
    if batch.mask is None or batch.mask.ndim != 2:
        return
    mask = batch.mask.bool() if not batch.mask.is_floating_point() else batch.mask > 0.5
    if bool(mask.all()):
        return
    own = padding_in(model, batch.args, batch.kwargs)
    if own is not None and own.shape == mask.shape:
        if torch.equal(own.to(mask.device), ~mask) and not torch.equal(own.to(mask.device), mask):
            raise _reversed("the padding mask among the inputs says the opposite of every token")
        return
    P = _first_attention(model, batch, mask)
    if P is not None and P.shape[:2] == mask.shape:  # else it is refused where it is used
        if _hides(P, mask):
            return
        if _hides(P, ~mask):
            raise _reversed("the model gives no attention to the tokens that it calls padding, and all to the others")
    tokens = next((v for v in (*batch.args, *batch.kwargs.values()) if _is_tokens(v, mask)), None)
    alike = None if tokens is None else (_all_alike(tokens, ~mask), _all_alike(tokens, mask))
    if alike == (False, True):
        raise _reversed("the tokens that it counts are all the same one, and those it leaves out are not")
    if alike != (True, False) and batch.mask.dtype == torch.bool and _begins_with_padding(mask):
        raise MaskError(
            "mask must be 1 for a token and 0 for padding; this one is False for the first tokens and True for the "
            f"last, and nothing in the model or its inputs tells whether that is so. {QUESTION}Or is the padding on "
            "the left? Then say so by numbers: pass mask.long()."
        )


def _reversed(reason: str) -> MaskError:
    return MaskError(
        f"mask must be 1 for a token and 0 for padding; {reason}. {QUESTION}Or leave mask= out where the model is "
        "given its own."
    )


def _hides(P: Tensor, mask: Tensor) -> bool:
    """Whether tokens give nothing to what is left out, though nothing else keeps them from it; P (b, n, n)."""
    pairs = mask.unsqueeze(-1) & ~mask.unsqueeze(-2)
    if not bool(P.triu(1).any()):
        pairs = pairs.tril()  # causal: the future tells nothing
    return bool(pairs.any()) and float(P[pairs].nan_to_num(0.0).max()) <= SILENT


def _begins_with_padding(mask: Tensor) -> bool:
    """Whether every sequence that is padded is so on the left, in one piece."""
    padded = mask[~mask.all(-1)].int()
    return bool((padded.diff(dim=-1) >= 0).all()) and bool((padded[:, -1] == 1).all())


def _is_tokens(value: Any, mask: Tensor) -> bool:
    """Ids (B, n) or tokens (B, n, d)."""
    return isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[:2] == mask.shape


def _all_alike(tokens: Tensor, where: Tensor) -> bool:
    """Whether all tokens at these places, two or more, are the same one."""
    chosen = tokens[where.to(tokens.device)]
    return len(chosen) > 1 and bool((chosen == chosen[0]).all())


class _EnoughError(Exception):
    """The first attention has been seen: the rest of the pass tells nothing more."""


class _Peek:
    """A listener that ends the pass at the first self-attention over the tokens of a mask."""

    everything = False

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.P: Tensor | None = None

    def modules(self) -> tuple:
        return ()

    def closed(self, failed: bool) -> None: ...

    def operation(self, op: Operation) -> Any:
        result = op.run()
        seen = attention_in(op, result)
        B, n = self.mask.shape
        if seen is not None and seen.queries == seen.keys == n:
            front = (seen.q if seen.q is not None else seen.P).shape[0]  # type: ignore[union-attr]
            if front % B == 0:
                self.P = _of_first_head(seen.folded(B), op)
                raise _EnoughError
        return result


def _of_first_head(seen: AttentionSeen, op: Operation) -> Tensor:
    """P (B, n, n) of the first head: padding is the same for all of them."""
    if seen.P is not None:
        return seen.P[:, 0].detach()
    q, k = (x[:, :1].detach() for x in (seen.q, seen.k))  # type: ignore[index]
    bias = seen.bias if seen.bias is None or seen.bias.ndim < 3 else seen.bias.reshape(-1, *seen.bias.shape[-3:])
    bias = bias[:, :1] if bias is not None and bias.ndim == 4 else bias
    return SdpaCall({**op.named(), "attn_mask": bias}).probabilities(q, k)[:, 0]


def _first_attention(model: nn.Module, batch: Batch, mask: Tensor) -> Tensor | None:
    """P (B, n, n) of one head of the first self-attention, in a quiet pass that ends there; None when none is seen."""
    peek = _Peek(mask)
    try:
        with untouched(model), evaluated(model), hooks_away(model), torch.no_grad(), Watcher(peek):
            batch.run(model)
    except _EnoughError:
        pass
    except Exception:  # the pass that measures will tell what is wrong with the model
        return None
    return None if peek.P is None else peek.P.to(mask.device)
