"""Token diversity of every prefix: what a causal model has seen when it reads token t."""

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import chunks


def prefix_diversity(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """t_div of the tokens 1 .. t, for every t, in O(n d).

    prefix_diversity(X)_t = C_t / (C_t + t |m_t|^2),    m_t = (1/t) sum_{s<=t} x_s
    C_t = sum_{s<=t} |x_s - m_t|^2 = sum_{s<=t} (s-1)/s |x_s - m_{s-1}|^2

    X (..., n, d) -> (..., n), float64, in [0, 1]; 0 for the first token, NaN for padding and for a prefix that is all
    zero. With a mask, t counts the tokens that are no padding. The sum of C_t has no negative term: nothing cancels,
    however near the tokens are to each other.
    """
    parts = [_by_prefix(chunk) for chunk in chunks(X, mask, where="prefix_diversity")]
    return torch.cat(parts).reshape(X.shape[:-1])


def _by_prefix(chunk: Chunk) -> Tensor:
    """(b, n) of one chunk."""
    valid = torch.ones_like(chunk.x[..., :1], dtype=torch.bool) if chunk.valid is None else chunk.valid
    start = valid.int().argmax(-2, keepdim=True)
    x_1 = chunk.wide.gather(-2, start.expand(-1, 1, chunk.x.shape[-1]))
    y = torch.where(valid, chunk.wide - x_1, 0.0)  # differences of near numbers are exact
    t = valid.double().cumsum(-2)  # (b, n, 1)
    sums = y.cumsum(-2)
    before = torch.nn.functional.pad(sums, (0, 0, 1, -1)) / (t - 1).clamp_min(1)  # m_{t-1} - x_1
    grown = (t - 1) / t.clamp_min(1) * (y - before).square().sum(-1, keepdim=True)
    centred = torch.where(valid, grown, 0.0).cumsum(-2)
    mean = x_1 + sums / t.clamp_min(1)
    diversity = centred / (centred + t * mean.square().sum(-1, keepdim=True))
    return torch.where(valid, diversity, torch.nan).squeeze(-1)
