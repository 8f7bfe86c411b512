"""Scores by distance, and attention with a mask that is learned: the two kernels of relative attention."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import handle_torch_function, has_torch_function


def furthest(n: int, like: Tensor) -> Tensor:
    """(n, n): minus infinity in the columns c < n - i of row i, whose distance no key has; else plus infinity."""
    far = torch.ones(n, n, dtype=torch.bool, device=like.device).tril().flip(0)
    return torch.full((n, n), torch.inf, dtype=like.dtype, device=like.device).masked_fill_(far, -torch.inf)


class _PositionScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, r: Tensor, s: float) -> Tensor:
        ctx.save_for_backward(q, r)
        ctx.s, (h, B, n, _), T = s, q.shape, r.shape[1] - 1
        S = torch.bmm(q.flatten(1, 2) * s, r.transpose(1, 2)).view(h, B, n, T + 1)
        torch.minimum(S[..., :n], furthest(n, S), out=S[..., :n])  # as masked_fill_, in a seventh of the time
        return S.as_strided((h, B, n, T), (B * n * (T + 1), n * (T + 1), T, 1), n)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *dB: Tensor) -> tuple[Tensor, Tensor, None]:
        q, r = ctx.saved_tensors
        g, (h, B, n, e), T = dB[0].contiguous(), q.shape, r.shape[1] - 1
        dS = g.new_empty(h * B, n, T + 1)
        dS[:, 0, :n].zero_()
        dS[:, 0, n:] = g.view(h * B, n, T)[:, 0, : T - n + 1]  # the first query has no row before it to take zeros from
        dS[:, 1:] = g.as_strided((h * B, n - 1, T + 1), (n * T, T + 1, 1), g.storage_offset() + T + 1 - n)
        dS = dS.view(h, B * n, T + 1)
        dq, dr = torch.bmm(dS, r), torch.bmm(dS.transpose(1, 2), q.flatten(1, 2))
        return dq.mul_(ctx.s).view(h, B, n, e), dr.mul_(ctx.s), None


def position_scores(q: Tensor, r: Tensor, s: float) -> Tensor:
    """B_ij = s q_i . r(M + i - j) for the keys j up to M + i, minus infinity for later ones.

    q (h, B, n, e), r (h, T + 1, e) for the distances T ... 0, T = M + n -> B (h, B, n, T). The distance T, which no key
    has, makes room for the shift. The heads are in front, so that one product for each head serves all sequences.

    S = s q r^T (h, B, n, T + 1) has a column for each distance; B is S with row i moved left by n - i. In memory that
    is a view whose rows are T apart instead of T + 1. The places of later keys fall onto those entries of the next row
    whose distance reaches back before the first key; only these, among the first n columns, are made minus infinity.
    Backwards, a view with rows T + 1 apart undoes the shift. What it takes from the row before are places of later
    keys, where the gradient behind a softmax is exactly zero.
    """
    if torch.compiler.is_compiling():
        return _by_gathering(q, r, s)
    return _PositionScores.apply(q, r, s)


def _by_gathering(q: Tensor, r: Tensor, s: float) -> Tensor:
    """The same, every entry taken from its place: for compilers, which know no overlapping views."""
    n, T = q.shape[2], r.shape[1] - 1
    S = torch.einsum("hbne,hte->hbnt", q * s, r)
    i, j = torch.arange(n, device=q.device).unsqueeze(1), torch.arange(T, device=q.device)
    column = j + n - i  # its distance is T - column
    B = S.gather(-1, column.clamp(max=T).expand(*S.shape[:2], n, T))
    return B.masked_fill(column > T, -torch.inf)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        P = torch.softmax(scores, -1, out=scores)  # in place: at these sizes time goes into touching memory
        ctx.save_for_backward(q, k, v, P)
        return torch.bmm(P, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """dS = P (dP - rowsum(P dP))."""
        q, k, v, P = ctx.saved_tensors
        g, s = d_out[0], q.shape[-1] ** -0.5
        dS = torch._softmax_backward_data(torch.bmm(g, v.transpose(1, 2)), P, -1, P.dtype)
        return torch.bmm(dS, k).mul_(s), torch.bmm(dS.transpose(1, 2), q).mul_(s), torch.bmm(P.transpose(1, 2), g), dS


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_h) + mask) v, as torch's function of the same name, faster for a mask with a gradient.

    Every query must see a key. Scans and remedies know attention by this name, so it hands itself over to them as
    torch's functions do.
    """
    tensors = (query, key, value, attn_mask)
    if has_torch_function(tensors):
        return handle_torch_function(scaled_dot_product_attention, tensors, *tensors)
    if torch.compiler.is_compiling():  # the compiler finds its own ways to touch less memory
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + attn_mask
        return scores.softmax(-1) @ value
    heads_first = (x.transpose(0, -3) for x in tensors)  # as position_scores lays them: the mask need not be copied
    mixed = _Attention.apply(*(x.flatten(0, -3) for x in heads_first))
    shape = query.transpose(0, -3).shape[:-1]
    return mixed.view(*shape, value.shape[-1]).transpose(0, -3)


scaled_dot_product_attention.masks_by_position = True  # type: ignore[attr-defined]  # no mask for padding
