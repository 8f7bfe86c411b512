"""Relative attention of one sequence after another, whose scores never leave the processor's caches."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import has_torch_function

from depthscope.models.position_scores import furthest, position_scores, scaled_dot_product_attention

WORTH = 1 << 16  # scores of a sequence: below, calling for each sequence by itself costs more than it saves


class _OneByOne(torch.autograd.Function):
    """c, p (B, n, h, e), k, v (B, T, h, e), r (h, T + 1, e) -> (B, n, h, e).

    `room` holds n (T + 1) numbers for each head. Read in rows of T + 1 they are scores by distance; without the first n
    and read in rows of T, by key: the shift of position_scores, there and back, without a copy.
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, p: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
        (B, n, h, e), T = c.shape, k.shape[1]
        room, P, mixed = c.new_empty(h, n * (T + 1)), c.new_empty(B, h, n, T), torch.empty_like(c)
        by_distance, by_key = room.view(h, n, T + 1), room[:, n:].view(h, n, T)
        too_far, most = by_distance[..., :n], furthest(n, c)
        for b, (c_b, p_b, k_b, v_b) in enumerate(_heads_first(c, p, k, v)):
            by_distance.baddbmm_(p_b, r.transpose(1, 2), beta=0, alpha=e**-0.5)
            torch.minimum(too_far, most, out=too_far)
            by_key.baddbmm_(c_b, k_b.transpose(1, 2), alpha=e**-0.5)
            torch.softmax(by_key, -1, out=P[b])
            mixed[b].transpose(0, 1).baddbmm_(P[b], v_b, beta=0)
        ctx.save_for_backward(c, p, k, v, r, P, mixed)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_mixed: Tensor) -> tuple[Tensor, ...]:
        """dS = P (dP - rowsum(P dP)), where rowsum(P dP) = rowsum(d_mixed mixed). Later keys have P = 0 and dS = 0."""
        (c, p, k, v, r, P, mixed), g = ctx.saved_tensors, d_mixed[0]
        (_, n, h, e), T = c.shape, k.shape[1]
        gradients = tuple(map(torch.empty_like, (c, p, k, v)))
        dr, room, s = torch.zeros_like(r), c.new_zeros(h, n * (T + 1)), e**-0.5
        by_distance, by_key = room.view(h, n, T + 1), room[:, n:].view(h, n, T)
        mean = (g * mixed).sum(-1, keepdim=True)
        rows = _heads_first(c, p, k, v, *gradients, g, mean)
        for P_b, (c_b, p_b, k_b, v_b, dc_b, dp_b, dk_b, dv_b, g_b, mean_b) in zip(P, rows, strict=True):
            dv_b.baddbmm_(P_b.transpose(1, 2), g_b, beta=0)
            by_key.baddbmm_(g_b, v_b.transpose(1, 2), beta=0).sub_(mean_b).mul_(P_b)
            dc_b.baddbmm_(by_key, k_b, beta=0, alpha=s)
            dk_b.baddbmm_(by_key.transpose(1, 2), c_b, beta=0, alpha=s)
            dp_b.baddbmm_(by_distance, r, beta=0, alpha=s)
            dr.baddbmm_(by_distance.transpose(1, 2), p_b, alpha=s)
        return *gradients, dr


def _heads_first(*tensors: Tensor) -> zip:  # type: ignore[type-arg]
    """Sequence by sequence, views (h, n, e) of all of the tensors (B, n, h, e)."""
    return zip(*(x.transpose(1, 2) for x in tensors), strict=True)


def relative_attention(c: Tensor, p: Tensor, k: Tensor, v: Tensor, r: Tensor) -> Tensor:
    """softmax((c k^T + shifted(p r^T)) / sqrt(e)) v over the keys up to each query.

    c, p (..., h, n, e): what queries ask of content and position; k, v (..., h, T, e); r (h, T + 1, e) for the
    distances T ... 0. Whoever watches or changes attention is shown scaled_dot_product_attention, of all sequences.
    """
    n, T, tensors = c.shape[-2], k.shape[-2], (c, p, k, v, r)
    alike = {(x.dtype, x.device.type) for x in tensors} == {(c.dtype, "cpu")}
    if torch.compiler.is_compiling() or has_torch_function(tensors) or not alike or c.shape[-3] * n * T < WORTH:
        return scaled_dot_product_attention(c, k, v, _scores(p, r))
    tokens_first = (x.transpose(-2, -3) for x in (c, p, k, v))
    flat = (x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:]) for x in tokens_first)
    mixed = _OneByOne.apply(*flat, r)
    return mixed.view(*c.shape[:-3], *mixed.shape[1:]).transpose(-2, -3)


def _scores(p: Tensor, r: Tensor) -> Tensor:
    """The scores of the positions, (..., h, n, T): p (..., h, n, e), r (h, T + 1, e)."""
    heads_first = p.flatten(0, -4) if p.ndim > 3 else p.unsqueeze(0)
    scores = position_scores(heads_first.transpose(0, 1), r, p.shape[-1] ** -0.5).transpose(0, 1)
    return scores.unflatten(0, p.shape[:-3]) if p.ndim > 3 else scores.squeeze(0)
