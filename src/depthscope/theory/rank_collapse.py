"""How fast pure attention makes tokens equal, at least: the bounds of Dong et al. (2021), in log10: 3^L overflows.

Let R be the tokens without their mean and r = |R|_{1,inf} = sqrt(|R|_1 |R|_inf). A head gives
P X W = 1 c^T + (P - 1 q^T) R W, c the same for all tokens (softmax_perturbation.py). |.|_1 and |.|_inf are norms, so

    |(P - 1 q^T) R W|_1   <= kappa(D) |E|_1 |R|_1 |W|_1,    |E|_1 <= s |W_QK|_1 |R|_1 |R|_inf = s |W_QK|_1 r^2
    |(P - 1 q^T) R W|_inf <= D / 2 |R|_inf |W|_inf,         D / 2 <= max |E_ij| <= |E|_1

and heads, skips and feed-forward networks add up or multiply in each norm by itself. Taking the mean away from what
comes out at most doubles both norms, so that one layer gives r' <= 2 kappa(D)^(1/2) s |W_QK|_1 |W|_{1,inf} r^3. For
D <= 1.256 the first factor is at most 2.35, where the paper has 4 gamma: for one head its statement holds with
gamma = 1, and for res(X) by the mean, as its code has it, as well as by the best x, as its text has it.

|.|_{1,inf} itself has no triangle inequality. So what the paper prints for several heads and for skips fails for
matrices that are far larger in one norm than in the other (tests/theory/test_rank_collapse.py has the counter-examples,
dong2021/bounds their numbers); head_norms, attention_bound and skip_bound are what holds.
"""

import math

import torch
from torch import Tensor

from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain
from depthscope.theory.softmax_perturbation import PRECONDITION, column_growth


def rank_collapse_bound(
    residual: Number,
    depth: Number,
    beta: Number,
    d_qk: Number,
    *,
    heads: Number = 1,
    gamma: Number = 1.0,
    lipschitz: Number = 1.0,
) -> Result:
    """log10 of what pure attention can leave of the differences between tokens after so many layers.

    |res(X_L)| <= c^((3^L - 1) / 2) |res(X)|^(3^L),    c = 4 gamma beta H lambda / sqrt(d_qk)

    residual = |res(X)|_{1,inf} (...), beta >= |W_QK,h|_1 |W_h|_{1,inf} for every head -> log10 (...). Holds with
    gamma = 1 where, in every layer, the scores of a row differ by D <= 1.256 (score_spread): for one head; for several
    with beta = sqrt(a b d_qk) / H of head_norms, and not with the largest beta of a head, as is printed. lipschitz: of
    feed-forward networks that follow, in both norms. Dong et al. 2021, theorems 2.2 and 2.3, section on MLPs.

    Examples:
        >>> round(float(ds.theory.rank_collapse_bound(0.1, 3, beta=1.0, d_qk=64)), 2)  # log10, after 3 layers
        -30.91
    """
    residual, depth = checked("rank_collapse_bound", residual=residual, depth=depth)
    log_c = _log_factor("rank_collapse_bound", beta, d_qk, heads, gamma, lipschitz)
    log_r, L, c = as_tensors(_log10(residual), depth, log_c)
    return plain(_power(c, L) + 3**L * log_r, residual, depth, beta, d_qk, heads, gamma, lipschitz)


def contraction_radius(
    beta: Number, d_qk: Number, *, heads: Number = 1, gamma: Number = 1.0, lipschitz: Number = 1.0
) -> Result:
    """Below which residual the bound shrinks from layer to layer; above it, it says nothing.

    c r^3 < r,    r < 1 / sqrt(c),    c = 4 gamma beta H lambda / sqrt(d_qk)

    numbers or (...) -> the same, > 0. From Dong et al. 2021, theorem 2.3.

    Examples:
        >>> round(float(ds.theory.contraction_radius(1.0, 64.0)), 3)
        1.414
    """
    log_c = _log_factor("contraction_radius", beta, d_qk, heads, gamma, lipschitz)
    (c,) = as_tensors(log_c)
    return plain(10 ** (-c / 2), beta, d_qk, heads, gamma, lipschitz)


def printed_skip_bound(
    residual: Number, depth: int, beta: Number, d_qk: Number, *, heads: Number = 1, gamma: Number = 1.0
) -> Result:
    """log10 of the paper's bound with skip connections, as printed; skip_bound is the one that holds.

    |res(X_L)| <= max_{l <= L} c^((3^l - 1) / 2) (2 H)^(3^l (L - l)) |res(X)|^(3^l),    c = 8 gamma beta H / sqrt(d_qk)

    numbers or (...) -> log10. It never falls below |res(X)|. Dong et al. 2021, the section on skip connections.

    Examples:
        >>> round(float(ds.theory.printed_skip_bound(0.1, 3, beta=1.0, d_qk=64)), 3)  # log10; it was -1
        -0.097
    """
    (residual,) = checked("printed_skip_bound", residual=residual)
    log_c = _log_factor("printed_skip_bound", beta, d_qk, heads, gamma, 2.0)
    log_r, c, H = as_tensors(_log10(residual), log_c, heads)
    terms = [
        _power(c, torch.tensor(float(k))) + 3.0**k * ((depth - k) * (2 * H).log10() + log_r) for k in range(depth + 1)
    ]
    return plain(torch.stack(terms).amax(0), residual, beta, d_qk, heads, gamma)


def head_norms(W_QK: Tensor, W: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    """What one layer's matrices can do to the two norms of the residual: a for columns, b for rows.

    a = s sum_h |W_QK,h|_1 |W_h|_1,    b = s sum_h |W_QK,h|_1 |W_h|_inf

    W_QK = W_Q W_K^T and W = W_V W_O (..., H, d, d) -> (...) each; s = 1 / sqrt(d_qk). sqrt(a b) stands in the place of
    the paper's beta H / sqrt(d_qk). For one head it is the same, for several it holds where the other does not.

    Examples:
        >>> W = 0.1 * torch.eye(4).expand(2, 4, 4)  # two heads of width 4
        >>> [round(float(norm), 3) for norm in ds.theory.head_norms(W, W, scale=0.5)]
        [0.01, 0.01]
    """
    w = scale * columns_norm(W_QK)
    return (w * columns_norm(W)).sum(-1), (w * rows_norm(W)).sum(-1)


def attention_bound(
    residual: Number, a: Number, b: Number, *, D: Number = PRECONDITION, n: Number | None = None
) -> Result:
    """log10 of what one layer of pure attention can leave of the differences between tokens: the cubic rate.

    |res(SA(X))| <= 2 sqrt(kappa(D) a b) |res(X)|^3

    residual = |res(X)|_{1,inf}, a and b of head_norms, D as measured (score_spread) -> log10 (...). Holds for every D;
    with the number n of tokens kappa is n / 4 at most, and D = inf is what holds whatever D is.

    Examples:
        >>> round(float(ds.theory.attention_bound(0.1, a=1.0, b=1.0)), 3)  # log10; it was -1
        -2.629
    """
    residual, a, b = checked("attention_bound", residual=residual, a=a, b=b)
    growth = column_growth(D, n)
    r, x, y, kappa = as_tensors(residual, a, b, growth)
    log = math.log10(2) + (kappa.log10() + x.log10() + y.log10()) / 2 + 3 * r.log10()
    return plain(torch.where((x == 0) | (y == 0) | (r == 0), -math.inf, log), residual, a, b, growth)


def skip_bound(
    log_residual: Number, a: Number, b: Number, *, D: Number = PRECONDITION, n: Number | None = None
) -> Result:
    """log10 of what one layer of attention with its skip connection can leave: more than came in, never less.

    |res(X + SA(X))| <= r sqrt((1 + 2 kappa(D) a r^2) (1 + 2 b r^2)),    r = |res(X)|_{1,inf}

    log_residual = log10 r (a sum of two powers: the bound of one layer is what the next one takes) -> log10 (...).
    n: tokens, as in attention_bound.

    Examples:
        >>> round(float(ds.theory.skip_bound(-1.0, a=1.0, b=1.0)), 3)  # log10; it was -1
        -0.99
    """
    a, b = checked("skip_bound", a=a, b=b)
    growth = column_growth(D, n)
    log_r, x, y, kappa = as_tensors(log_residual, a, b, growth)
    grown = [_log10_1p(math.log10(2) + part.log10() + 2 * log_r) for part in (torch.where(x == 0, x, kappa * x), y)]
    return plain(log_r + (grown[0] + grown[1]) / 2, log_residual, a, b, growth)


def columns_norm(W: Tensor) -> Tensor:
    """|W|_1, the largest column sum of absolute values; (..., d, e) -> (...)."""
    return W.abs().sum(-2).amax(-1)


def rows_norm(W: Tensor) -> Tensor:
    """|W|_inf, the largest row sum of absolute values; (..., d, e) -> (...)."""
    return W.abs().sum(-1).amax(-1)


def _log_factor(where: str, beta: Number, d_qk: Number, heads: Number, gamma: Number, lipschitz: Number) -> Tensor:
    """log10 of 4 gamma beta H lambda / sqrt(d_qk)."""
    checked(where, beta=beta, d_qk=d_qk, heads=heads, gamma=gamma, lipschitz=lipschitz)
    values = as_tensors(4 * gamma * lipschitz, beta, heads, torch.as_tensor(d_qk, dtype=torch.float64) ** -0.5)
    return torch.stack([v.log10() for v in values]).sum(0)


def _power(log_c: Tensor, depth: Tensor) -> Tensor:
    """log10 of c^((3^L - 1) / 2): nothing at all for L = 0, whatever c is."""
    times = (3**depth - 1) / 2
    return torch.where(times == 0, 0.0, times * log_c)


def _log10(x: Number) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float64).log10()


def _log10_1p(log_x: Tensor) -> Tensor:
    """log10(1 + 10^x) without overflow."""
    return torch.nn.functional.softplus(log_x * math.log(10), threshold=700) / math.log(10)
