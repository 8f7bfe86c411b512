"""How far attention is from a matrix of equal rows when tokens differ little (Dong et al. 2021, appendix).

With X = 1 x^T + R, scores s X W_QK X^T + 1 b^T X^T and s = 1 / sqrt(d_qk), whatever is constant along a row leaves
softmax alone: P = softmax(1 r^T + E) with E = s R W_QK R^T. For E = 0 all rows are q = softmax(r). Let D be the largest
difference of two entries in one row of E. Then every entry of P is q_j times a factor between e^-D and e^D, and

    |P - 1 q^T|_inf <= 2 tanh(D / 4) <= D / 2,      |P - 1 q^T|_1 <= kappa(D) |E|_1,
    kappa(D) = (1 + (e^2D - 1) / 2D) / 4

The first: two laws whose ratio spans e^D differ by no more than those on two points do. The second: let E grow to its
size in time t from 0 to 1. Then d P_ij/dt = P_ij (1 - P_ij) E_ij - P_ij sum_{k != j} P_ik E_ik, and
P_ij P_ik <= q_j q_k e^{2 D t}. Summed over the rows i, with P (1 - P) <= 1/4 and q_j (1 - q_j) <= 1/4, this is at most
(1 + e^{2 D t}) |E|_1 / 4 for every column j. And P_ij P_ik <= 1/4 for k != j, so that n / 4 may stand for kappa(D)
where it is less: with n tokens no D is too large.

The paper's lemma, (I - D) 1 q^T <= P <= (I + 2 D) 1 q^T for D <= 1.256 where e^D <= 1 + 2 D, follows too. It leaves a
sum over rows of maxima, and the paper's gamma stands for exchanging the two. The second line above needs no gamma.
"""

import torch
from torch import Tensor

from depthscope.errors import ShapeError
from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain

PRECONDITION = 1.2564312086261697  # where e^D = 1 + 2 D


def score_residual(R: Tensor, W_Q: Tensor, W_K: Tensor, *, scale: float) -> Tensor:
    """The part E of the scores that makes one row of attention unlike another.

    E = scale R W_Q W_K^T R^T

    R (..., n, d) tokens without their mean, W_Q and W_K (H, d, d_qk) -> (..., H, n, n). Dong et al. 2021, appendix.

    Examples:
        >>> R, W = torch.eye(4) - 0.25, torch.ones(2, 4, 3)  # 4 tokens, two heads of width 3
        >>> ds.theory.score_residual(R, W, W, scale=0.5).shape
        torch.Size([2, 4, 4])
    """
    if R.ndim < 2 or W_Q.ndim != 3 or W_Q.shape != W_K.shape or W_Q.shape[1] != R.shape[-1]:
        raise ShapeError(
            "score_residual: R must be (..., n, d) and W_Q, W_K (H, d, d_qk); got "
            f"{tuple(R.shape)}, {tuple(W_Q.shape)}, {tuple(W_K.shape)}. Split the matrices into heads."
        )
    R = R.unsqueeze(-3)  # (..., 1, n, d)
    return scale * (R @ W_Q) @ (R @ W_K).mT


def score_spread(E: Tensor) -> Tensor:
    """D, the largest difference of two scores in one row; the bounds need D <= 1.256.

    D = max_i max_{j,k} |E_ij - E_ik|

    E (..., n, n) -> (...). A column in which every row has the same entry moves r and not E: D is measured after the
    tokens' mean was taken out (score_residual).

    Examples:
        >>> float(ds.theory.score_spread(torch.tensor([[0.0, 0.5], [0.25, 0.0]])))
        0.5
    """
    return (E.amax(-1) - E.amin(-1)).amax(-1)


def column_growth(D: Number, n: Number | None = None) -> Result:
    """kappa: how many times |E|_1 a column of P - 1 q^T can reach.

    kappa(D) = min((1 + (e^2D - 1) / 2D) / 4, n / 4)

    D (...) -> (...), 1/2 for D = 0 and 1.38 at the end of the precondition; it grows with D, up to n / 4 where the
    number n of tokens is given, and without end where it is not.

    Examples:
        >>> float(ds.theory.column_growth(0.0)), round(float(ds.theory.column_growth(1.256)), 2)
        (0.5, 1.38)
    """
    (D,) = checked("column_growth", D=D)
    (x,) = as_tensors(D)
    kappa = (1 + torch.where(x > 0, torch.expm1(2 * x) / (2 * x).clamp(1e-300, 1e300), 1.0)) / 4
    if n is None:
        return plain(kappa, D)
    (n,) = checked("column_growth", n=n)
    return plain(torch.minimum(*as_tensors(kappa, n / 4)), D, n)


def exchange_gamma(E: Tensor) -> Tensor:
    """The paper's gamma: what it costs to exchange the sum over rows with the maximum over columns.

    gamma^2 = sum_i max_{j,k} |E_ij - E_ik| / max_{j,k} sum_i |E_ij - E_ik|

    E (..., n, n) -> (...), in [1, sqrt(n)]. With this gamma the paper's own proof is complete; the proof in this module
    does without. NaN for E = 0.

    Examples:
        >>> float(ds.theory.exchange_gamma(torch.tensor([[0.0, 1.0], [0.0, 0.0]])))
        1.0
    """
    columns = E.mT  # distances between columns
    return ((E.amax(-1) - E.amin(-1)).sum(-1) / torch.cdist(columns, columns, p=1).amax((-2, -1))).sqrt()
