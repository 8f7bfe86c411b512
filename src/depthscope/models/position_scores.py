"""Scores by distance, and attention with a mask that is learned: the two kernels of relative attention."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function


class _PositionScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, r: Tensor, s: float) -> Tensor:
        ctx.save_for_backward(q, r)
        ctx.s, (N, n), T = s, q.shape[:2], r.shape[1] - 1
        S = torch.bmm(q * s, r.transpose(1, 2))
        too_far = torch.ones(n, n, dtype=torch.bool, device=q.device).tril().flip(0)  # column c of row i: c < n - i
        S[:, :, :n].masked_fill_(too_far, -torch.inf)
        return S.as_strided((N, n, T), (n * (T + 1), T, 1), n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dB: Tensor) -> tuple[Tensor, Tensor, None]:
        q, r = ctx.saved_tensors
        g, (N, n), T = dB[0].contiguous(), q.shape[:2], r.shape[1] - 1
        first = g[:, :1, : T - n + 1]  # the first query, which has no row before it to take zeros from
        later = g.as_strided((N, n - 1, T + 1), (n * T, T + 1, 1), g.storage_offset() + T + 1 - n)
        dq = torch.cat([first @ r[:, n:], later @ r], 1)
        dr = later.transpose(1, 2) @ q[:, 1:]
        dr[:, n:].baddbmm_(first.transpose(1, 2), q[:, :1])
        return dq.mul_(ctx.s), dr.mul_(ctx.s), None


def position_scores(q: Tensor, r: Tensor, s: float) -> Tensor:
    """B_ij = s q_i . r(M + i - j) for the keys j up to M + i, minus infinity for later ones.

    q (N, n, e), r (N, T + 1, e) for the distances T ... 0, T = M + n -> B (N, n, T). The distance T, which no key has,
    makes room for the shift.

    S = s q r^T (N, n, T + 1) has a column for each distance; B is S with row i moved left by n - i. In memory that is a
    view whose rows are T apart instead of T + 1. The places of later keys fall onto those entries of the next row whose
    distance reaches back before the first key; only these, among the first n columns, are made minus infinity.
    Backwards, a view with rows T + 1 apart undoes the shift. What it takes from the row before are places of later
    keys, where the gradient behind a softmax is exactly zero.
    """
    return _PositionScores.apply(q, r, s)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        P = torch.softmax(scores, -1, out=scores)  # in place: at these sizes time goes into touching memory
        out = torch.bmm(P, v)
        ctx.save_for_backward(q, k, v, P, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dS = P (dP - rowsum(P dP)), where the sum is d_out . out."""
        q, k, v, P, out = ctx.saved_tensors
        g, s = d_out[0], q.shape[-1] ** -0.5
        along = (g * out).sum(-1, keepdim=True).neg_()
        dS = torch.baddbmm(along.expand_as(P), g, v.transpose(1, 2)).mul_(P)
        return torch.bmm(dS, k).mul_(s), torch.bmm(dS.transpose(1, 2), q).mul_(s), torch.bmm(P.transpose(1, 2), g), dS


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_h) + mask) v, as torch's function of the same name, faster for a mask with a gradient.

    Every query must see a key. Scans and remedies know attention by this name, so it hands itself over to them as
    torch's functions do.
    """
    tensors = (query, key, value, attn_mask)
    if has_torch_function(tensors):
        return handle_torch_function(scaled_dot_product_attention, tensors, *tensors)
    mixed = _Attention.apply(*(x.flatten(0, -3) for x in tensors))
    return mixed.view(*query.shape[:-1], value.shape[-1])
