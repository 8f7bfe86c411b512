"""Self-attention on laws: what softmax attention with Gaussian scores makes of its values."""

from torch import Tensor

from depthscope.laws.law import Law
from depthscope.theory.token_matrix import fluctuations, spread


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
    variance = scale**2 * d_h * S_q.diagonal(dim1=-2, dim2=-1).clamp(min=0) * spread(S_k, C, m)
    more = fluctuations(variance, spread(S_v, C, m), S_q, m)
    return v.mixed(C).plus(Law.fresh(more, followed=v.followed))
