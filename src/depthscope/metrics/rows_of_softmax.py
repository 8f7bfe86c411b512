"""Rows of softmax(q k^T scale + bias), made anew from q and k whenever they are asked for."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from depthscope.errors import ShapeError
from depthscope.metrics.scratch import Scratch
from depthscope.metrics.tiles import Scores

STRIP = 128  # rows of a causal P, at least, that are worth a call of their own

Rows = Callable[[int, int, int, int, Scratch], Tensor]  # (batch from, to, row from, to) -> (b, rows, m)


def scores_of(q: Tensor, k: Tensor, scale: float | None, causal: bool, where: str) -> Scores:
    """q and k with batch and head axes flattened."""
    if q.ndim != k.ndim or q.shape[-1] != k.shape[-1]:
        raise ShapeError(
            f"{where}: q and k must be (..., n, d_h) and (..., m, d_h); got {tuple(q.shape)} and {tuple(k.shape)}. "
            "Put the head axis before the tokens in both."
        )
    if k.shape[:-2] != q.shape[:-2] and q.ndim > 2:  # grouped heads: each key head serves several queries
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    q, k = (x.detach().reshape(-1, *x.shape[-2:]) for x in (q, k))
    return Scores(q, k, q.shape[-1] ** -0.5 if scale is None else scale, causal)


def softmax_rows(scores: Scores, bias: Tensor | None, batch: tuple[int, ...]) -> Rows:
    q, k, factor, causal = scores
    m, wide = k.shape[-2], scores.wide
    bias = None if bias is None else bias.detach().expand(*batch, *bias.shape[-2:])

    def rows(b: int, c: int, r: int, s: int, scratch: Scratch) -> Tensor:
        queries, keys = q[b:c, r:s].to(wide) * factor, k[b:c].to(wide)
        shape = (c - b, s - r, m)
        scores = scratch.take("scores", shape, queries)
        step = max(STRIP, -(-m // 4)) if causal else s - r
        for i in range(r, s, step):
            j, seen = min(i + step, s), min(i + step, s, m) if causal else m
            part = scores[:, i - r : j - r]
            torch.bmm(queries[:, i - r : j - r], keys[:, :seen].mT, out=part[..., :seen])
            if causal:
                token = torch.arange(m, device=q.device)
                part[..., seen:] = -math.inf
                part[..., i:seen].masked_fill_(token[i:seen] > torch.arange(i, j, device=q.device)[:, None], -math.inf)
        if bias is not None:
            index = torch.unravel_index(torch.arange(b, c, device=bias.device), batch)
            part = (bias[..., r:s, :] if bias.shape[-2] > 1 else bias)[index]
            scores = scores.masked_fill_(~part, -math.inf) if part.dtype == torch.bool else scores.add_(part)
        return torch.softmax(scores, -1, out=scratch.take("P", shape, scores))

    return rows
