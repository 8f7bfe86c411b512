"""Attention in functions that are not scaled_dot_product_attention: flex_attention, and torch's packed fast path."""

from typing import Any

import torch
from torch import Tensor

from depthscope.traces.attention import AttentionSeen


def flex_seen(args: tuple) -> AttentionSeen | None:
    """softmax(score_mod(q k^T scale)) where mask_mod says yes, P (B, h, n, m).

    args of the operator: query, key, value, score_mod, the parts of the block mask with mask_mod last, scale, options,
    and the tensors that score_mod and mask_mod close over.
    """
    q, k, _, score_mod, block_mask, scale = args[:6]
    others = [tuple(extra) for extra in args[7:9]] if len(args) > 8 else [(), ()]
    if q.ndim != 4:
        return None
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.detach().to(wide) @ k.detach().to(wide).mT * scale
    b, h, i, j = places = _grid(scores)
    scores = _everywhere(score_mod, 5, len(others[0]))(scores, b, h, i, j, *others[0])
    mask_mod = block_mask[-1] if block_mask else None
    if callable(mask_mod):
        scores = scores.masked_fill(~_everywhere(mask_mod, 4, len(others[1]))(*places, *others[1]), -torch.inf)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    P = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    return AttentionSeen(q.shape[-2], k.shape[-2], P=P)


def _grid(scores: Tensor) -> list[Tensor]:
    """The indices b, h, i, j."""
    return [torch.arange(size, device=scores.device, dtype=torch.int) for size in scores.shape]


def _everywhere(rule: Any, own: int, others: int) -> Any:
    """A rule for one score, of all scores at once."""
    rest = (None,) * others
    shared = (0,) if own == 5 else ()  # the scores go along every axis
    for axis in (3, 2, 1, 0):
        dims = tuple(0 if axis == place else None for place in range(4))
        rule = torch.vmap(rule, in_dims=(*shared, *dims, *rest), out_dims=0)
    return rule


def packed_seen(args: tuple, kwargs: dict[str, Any]) -> AttentionSeen | None:
    """torch._native_multi_head_attention(query, key, value, d, h, W_qkv, b_qkv, ...): q, k (B, h, n, d / h)."""
    x, key, _, d, heads, weight, bias, *rest = args
    mask = rest[2] if len(rest) > 2 else kwargs.get("mask")
    if x.is_nested or x.ndim != 3:
        return None
    q = torch.nn.functional.linear(x, weight[:d], bias[:d]).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = torch.nn.functional.linear(key, weight[d : 2 * d], bias[d : 2 * d]).unflatten(-1, (heads, -1)).transpose(1, 2)
    if mask is not None:  # True where a key is closed: (n, n), (B, n) or (B, h, n, n)
        kind = rest[5] if len(rest) > 5 else kwargs.get("mask_type")
        mask = ~mask.bool()
        mask = mask[:, None, None, :] if kind == 1 else mask
    return AttentionSeen(q.shape[-2], k.shape[-2], q=q, k=k, bias=mask)
