"""Self-attention on laws: what softmax attention with Gaussian scores makes of its values."""

from dataclasses import replace

from torch import Tensor

from depthscope.laws.doubt import Doubt, by_heads
from depthscope.laws.law import Law
from depthscope.theory.token_matrix import fluctuations, spread


def attended(q: Law, k: Law, v: Law, bias: Tensor, *, scale: float, d_h: int, heads: int) -> Law:
    """The law of P V for P = softmax(scale q k^T + bias), heads of d_h channels.

    Mean: P is softmax(bias) = C, uniform over what may be seen. Fluctuations: a query's scores vary over the keys by
    scale^2 d_h S_q,ii (mean S_k,aa - mean S_k,ab), so that sum_a P_ia^2 = Y_2 and not 1/m; two queries vary together as
    they are alike. What this adds to the overlaps of the values is a source of its own.
    """
    bias = bias if bool(bias.any()) else bias[:, :1]  # no mask: one row stands for all
    C = bias.softmax(-1)
    m = (C > 0).sum(-1).to(C)  # how many keys a query sees
    S_q, S_k, S_v = q.overlaps(), k.overlaps(), v.overlaps()
    variance = scale**2 * d_h * S_q.diagonal(dim1=-2, dim2=-1).clamp(min=0) * spread(S_k, C, m)
    D = spread(S_v, C, m)
    more = fluctuations(variance, D, S_q, m)
    uneven = Law.fresh(more, followed=v.followed)
    if v.doubt is not None:  # it grows with the spread of the values
        ratio = uneven.pair / v.pair[..., 1:].clamp(min=1e-300)
        slope, chance = ratio * v.doubt.slope[..., 1:], ratio.square().unsqueeze(-1) * v.doubt.variance[..., 1:, :]
        part = Doubt(slope, chance, float(variance.mean()))
        uneven = replace(uneven, doubt=part.with_chance("heads", by_heads(more, C, S_v, D, heads, d_h)))
    return v.mixed(C).plus(uneven)
