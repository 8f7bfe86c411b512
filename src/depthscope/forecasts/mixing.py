"""Self-attention on laws: what softmax attention with Gaussian scores makes of its values."""

import torch
from torch import Tensor

from depthscope.forecasts.law import Law
from depthscope.theory.kernels import deviations
from depthscope.theory.participation import participation_by_table


def attended(q: Law, k: Law, v: Law, bias: Tensor, *, scale: float, d_h: int) -> Law:
    """The law of P V for P = softmax(scale q k^T + bias) with d_h channels a head.

    Mean: P is softmax(bias) = C, uniform over what may be seen. Fluctuations: a query's scores vary over the keys by
    scale^2 d_h S_q,ii (mean S_k,aa - mean S_k,ab), so that sum_a P_ia^2 = Y_2 and not 1/m; two queries vary together as
    they are alike. What this adds to the overlaps of the values is a source of its own.
    """
    bias = bias if bool(bias.any()) else bias[:, :1]  # no mask: one row stands for all
    C = bias.softmax(-1)
    m = (C > 0).sum(-1).to(C)  # how many keys a query sees
    S_q, S_k, S_v = q.overlaps(), k.overlaps(), v.overlaps()
    variance = scale**2 * d_h * S_q.diagonal(dim1=-2, dim2=-1).clamp(min=0) * _spread(S_k, C, m)
    Y_2 = participation_by_table(m.expand_as(variance), variance)
    gain = ((Y_2 - 1 / m) * _spread(S_v, C, m)).clamp(min=0)  # (B, n)
    return v.mixed(C).plus(Law.fresh(_together(gain, variance, S_q, m), followed=v.followed))


def _spread(S: Tensor, C: Tensor, m: Tensor) -> Tensor:
    """The variance of a channel over the tokens that a query sees, (B, n)."""
    own = (C * S.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)).sum(-1)
    return (own - ((C @ S) * C).sum(-1)).clamp(min=0) * m / (m - 1).clamp(min=1)


def _together(gain: Tensor, variance: Tensor, S_q: Tensor, m: Tensor) -> Tensor:
    """The covariance of what fluctuations of P add, (B, n, n): e^{v c} - 1 over e^v - 1 of it for queries of cosine c.

    A query that sees fewer keys shares with one that sees more only those, and the other looks at each of them less.
    """
    _, cosine = deviations(S_q)
    variance = variance.clamp(min=1e-9)
    v, whole = (torch.minimum(x.unsqueeze(-1), x.unsqueeze(-2)) for x in (variance, torch.expm1(variance)))
    alike = torch.expm1(v * cosine) / whole
    few, many = m.unsqueeze(-1), m.unsqueeze(-2)
    least = torch.where(few <= many, gain.unsqueeze(-1), gain.unsqueeze(-2))
    both = alike * (least * (torch.minimum(few, many) / torch.maximum(few, many)))
    both.diagonal(dim1=-2, dim2=-1).copy_(gain)
    return both
