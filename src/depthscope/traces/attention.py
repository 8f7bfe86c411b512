"""Attention seen at the function that computes it: every family passes here, whatever its modules are called.

Models call torch's scaled_dot_product_attention (q, k, v), or take a softmax with an (n, n) result.
nn.MultiheadAttention does either one inside a single function, whose body is therefore watched as well.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from depthscope.traces.operations import Operation
from depthscope.traces.token_axis import batch_of

CLOSED = 80.0  # below the best score of its row by so much, a key has a weight that float32 takes for zero
SEEN = 1e-5  # a weight above this is attention
NOTHING = 1e-6  # the share of a key that is padding, in uniform attention, that counts as none


@dataclass(frozen=True)
class AttentionSeen:
    """Either P (..., n, m), or what P is computed from: q, k, scale, bias, causal.

    kind: "self"; "window", of a part of the sequence; "cross", keys from other tokens; "mixing", rows of P that are no
    probabilities. sink: rows of P sum to less than one, as what went to a sink was cut off.
    """

    queries: int
    keys: int
    P: Tensor | None = None
    q: Tensor | None = None
    k: Tensor | None = None
    scale: float | None = None
    bias: Tensor | None = None
    causal: bool | None = None
    kind: str = "self"
    sink: bool = False

    @property
    def front(self) -> tuple[int, ...]:
        """The axes before the queries: sequences and heads."""
        return tuple((self.q if self.q is not None else self.P).shape[:-2])  # type: ignore[union-attr]

    def batch_for(self, tokens: Tensor) -> int | None:
        """How many sequences this attention works on; None when it does not work on whole sequences of `tokens`."""
        return None if self.is_of_one(tokens) else batch_of(tuple(tokens.shape), self.front, self.queries)

    def is_of_one(self, tokens: Tensor) -> bool:
        """Whether q (h, n, d_h) has all channels of one sequence of many: these are computed one by one."""
        whole = self.q is not None and len(self.front) == 1 and self.front[0] * self.q.shape[-1] == tokens.shape[-1]
        return whole and math.prod(tokens.shape[:-1]) > self.queries

    def folded(self, batch: int) -> "AttentionSeen":
        """The same with axes (B, h, n, .) everywhere."""

        def fold(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.ndim == 4 else x.reshape(batch, -1, *x.shape[-2:])

        bias = self.bias
        if bias is not None and bias.ndim == 3 and self.q is not None and self.q.ndim == 3:
            bias = bias.unsqueeze(1) if bias.shape[0] in (1, batch) else fold(bias)
        return replace(self, P=fold(self.P), q=fold(self.q), k=fold(self.k), bias=bias)


def attention_in(op: Operation, result: Any) -> AttentionSeen | None:
    """What a torch function that just ran shows of attention, or None."""
    if op.role == "attention":
        return _of_sdpa(op.named())
    if op.role == "softmax" and isinstance(result, Tensor):
        return _of_softmax(result, op.named().get("dim"))
    return None


def _of_sdpa(call: dict[str, Any]) -> AttentionSeen | None:
    q, k, bias = call["query"], call["key"], call.get("attn_mask")
    if q.is_nested or q.ndim < 3:
        return None
    if bias is not None and bias.ndim < 2:
        return None
    causal = True if call.get("is_causal") else None
    return AttentionSeen(q.shape[-2], k.shape[-2], q=q, k=k, scale=call.get("scale"), bias=bias, causal=causal)


def _of_softmax(P: Tensor, dim: int | None) -> AttentionSeen | None:
    if P.ndim not in (3, 4) or not P.is_floating_point() or dim not in (-1, P.ndim - 1):
        return None
    return AttentionSeen(P.shape[-2], P.shape[-1], P=P) if P.shape[-1] == P.shape[-2] else None


class SdpaCall:
    """The parts of a call of scaled_dot_product_attention that are the model's own: its P, its mask, its dropout."""

    def __init__(self, call: dict[str, Any], hidden: "Hidden | None" = None) -> None:
        self.call, self.hidden = call, hidden

    def probabilities(self, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
        """P (..., n, n) before dropout, zero for a query that sees nothing; scale None is the model's own."""
        scale = self.call.get("scale") if scale is None else scale
        scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
        bias = self._bias(scores)
        if bias is None:
            return scores.softmax(-1)
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)

    def visible(self, P: Tensor) -> Tensor:
        """(..., n, n), True where a query may see a key: by the mask, because P may be zero for other reasons."""
        bias = self._bias(P)
        if bias is None:
            visible = torch.ones(P.shape[-2:], dtype=torch.bool, device=P.device)
        else:
            visible = bias if bias.dtype == torch.bool else within_reach(bias)
        return visible if self.hidden is None else self.hidden.leaves(visible, P)

    def dropout(self, P: Tensor) -> Tensor:
        return torch.dropout(P, self.call.get("dropout_p") or 0.0, train=True)

    def _bias(self, scores: Tensor) -> Tensor | None:
        if self.call.get("is_causal"):
            return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return self.call.get("attn_mask")


def within_reach(scores: Tensor) -> Tensor:
    """Which keys a row of scores, mask included, leaves open: those not far below the best."""
    return scores > scores.amax(-1, keepdim=True) - CLOSED


@dataclass(frozen=True)
class Hidden:
    """What queries may not see, whatever numbers a mask closes it with: the future of a causal stream, and padding."""

    future: bool = False
    tokens: Tensor | None = None  # (B, n), True where a token counts

    def leaves(self, visible: Tensor, P: Tensor) -> Tensor:
        """What is left of visible (..., n, n). Padding is closed where P gives it nothing: some models look at it."""
        if self.future and P.shape[-1] == P.shape[-2]:
            visible = visible & torch.ones(P.shape[-2:], dtype=torch.bool, device=P.device).tril()
        tokens = self.tokens
        if tokens is not None and P.ndim == 4 and tuple(tokens.shape) == (P.shape[0], P.shape[-1]):
            padding = ~tokens.to(P.device)[:, None, None, :]
            visible = visible & ~(padding & (P * P.shape[-1] < NOTHING))
        return visible


def first_sees_last(seen: AttentionSeen, mask: Tensor | None) -> bool:
    """Whether attention whose weights go to the values as they are gives the first token a part of the last.

    Then every token sees later ones, whatever lies between. seen: axes (B, h, n, .). mask (B, n): tokens that count;
    the longest sequence is looked at. False where only P is known: it may be masked after the softmax.
    """
    if seen.q is None or seen.k is None or seen.queries != seen.keys or seen.causal:
        return False
    row = 0 if mask is None else int(mask.sum(-1).argmax())
    places = torch.arange(seen.queries) if mask is None else mask[row].nonzero().flatten().cpu()
    if len(places) < 2:
        return False
    first, last = int(places[0]), int(places[-1])
    q, k = seen.q[row, :, first].double(), seen.k[row].double()  # (h, d_h), (h, n, d_h)
    k = k.repeat_interleave(len(q) // len(k), 0) if len(q) % len(k) == 0 else k
    scores = (k @ q.unsqueeze(-1)).squeeze(-1) * (q.shape[-1] ** -0.5 if seen.scale is None else seen.scale)
    if seen.bias is not None:
        bias = seen.bias.expand(*seen.q.shape[:2], seen.queries, seen.keys)[row, :, first]
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    return bool((scores.softmax(-1)[:, last] > SEEN).any())


def drops(op: Operation) -> bool:
    """Whether a call of dropout, or of attention with dropout, really drops something."""
    if op.role == "attention":
        return bool(op.named().get("dropout_p"))
    args, kwargs = op.args, op.kwargs
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(p) and bool(training)


def without_dropout(op: Operation) -> Any:
    """The result of a dropout or attention call as if dropout were off."""
    if op.role == "dropout":
        return op.args[0] if op.args else op.kwargs["input"]
    return op.func(**{**op.named(), "dropout_p": 0.0})
