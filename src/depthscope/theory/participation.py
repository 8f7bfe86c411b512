"""How many tokens a softmax really looks at: the inverse participation ratio of attention with Gaussian scores."""

from functools import lru_cache

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.kernels import gauss_hermite
from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain

LARGEST = 16.0  # variance of scores; tables end there, and sharper() goes on
FAR = 8.0  # standard deviations of a score that count
LAMBDA = torch.linspace(-16.0, 10.0, 120, dtype=torch.float64)  # of log(n lambda); the rule converges geometrically


def participation(n: Number, variance: Number) -> Result:
    """Y_2 = E sum_s P_ts^2 for P = softmax of n independent Gaussian scores.

    Y_2 = n int_0^inf l E[e^{2s} e^{-l e^s}] E[e^{-l e^s}]^{n-1} dl,    from 1 / Z^2 = int_0^inf l e^{-l Z} dl

    n, variance (...) -> (...), in [1/n, 1]: 1/n when attention is uniform, e^variance / n for small variances and many
    tokens, 1 when it looks at one token. For independent scores of a variance up to 16, within 1 %; beyond it the
    integral is refused. It is the Y_2 of Giorlandino & Goldt 2025 (2505.24333), whose limit of infinitely many tokens
    has a transition; n tokens have none.

    Examples:
        >>> round(float(ds.theory.participation(64, 1.0)), 3), 1 / 64  # scores of variance 1, and uniform attention
        (0.039, 0.015625)
    """
    n, variance = checked("participation", n=n, variance=variance)
    if bool((torch.as_tensor(variance) > LARGEST).any()):
        raise UsageError(
            f"participation: variance must be at most {LARGEST:g}, up to which the integral is right; got "
            f"{float(torch.as_tensor(variance).max()):g}. Beyond it attention looks at few tokens: Y_2 goes to 1."
        )
    m, v = as_tensors(n, variance)
    rows = [_participation(*part) for part in zip(m.flatten().split(256), v.flatten().split(256), strict=True)]
    low = torch.minimum(1 / m, torch.ones_like(m))
    return plain(torch.maximum(torch.cat(rows).reshape(v.shape), low).clamp(max=1.0), n, variance)


def participation_by_table(n: Tensor, variance: Tensor) -> Tensor:
    """participation() of many rows at once, read off a table: log(n Y_2) over log n and sqrt(variance), bilinear.

    n, variance (...) -> (...). Within 0.5 % of the exact value for n up to 65,536 and variances up to 16; beyond, see
    sharper().
    """
    sizes, roots, logs = _table()
    x = torch.bucketize(n.log2(), sizes).clamp(1, len(sizes) - 1)
    y = torch.bucketize(variance.sqrt(), roots).clamp(1, len(roots) - 1)
    a = ((n.log2() - sizes[x - 1]) / (sizes[x] - sizes[x - 1])).clamp(0, 1)
    b = ((variance.sqrt() - roots[y - 1]) / (roots[y] - roots[y - 1])).clamp(0, 1)
    low = logs[x - 1, y - 1].lerp(logs[x - 1, y], b)
    Y = (low.lerp(logs[x, y - 1].lerp(logs[x, y], b), a).exp() / n).clamp(max=1.0)
    return 1 - (1 - Y) * sharper(variance)


def sharper(variance: Tensor) -> Tensor:
    """What is left of 1 - Y_2 beyond LARGEST, (...): it falls as the temperature of the softmax, 1 / sqrt(variance).

    Within 0.03 of Y_2 for n = 16 at a variance of 40 and n = 128 at 100, by draws.
    """
    return (LARGEST / variance.clamp(min=LARGEST)).sqrt()


def together(sharpness: Tensor, cosine: Tensor) -> Tensor:
    """How far two queries of one sharpness look at the same keys: 0 for strangers, 1 for equal ones.

    (E sum_s P_ts P_us - 1/n) / (Y_2 - 1/n) ~ (e^{w c} - 1) / (e^w - 1),    w = log(n Y_2)

    sharpness n Y_2, cosine c of the queries (...) -> (...). For calm scores w is their variance, and this is exact for
    many keys; for sharp ones n Y_2 = e^w stays below n. Within 0.08 for n from 2 to 256 and variances up to 40.
    """
    w = sharpness.log().clamp(min=1e-9)
    return ((w * (cosine - 1)).exp() - (-w).exp()) / -torch.expm1(-w)  # in this form nothing overflows


@lru_cache
def _table() -> tuple[Tensor, Tensor, Tensor]:
    sizes, roots = torch.linspace(0, 16, 65, dtype=torch.float64), torch.linspace(0, 4, 41, dtype=torch.float64)
    n = (2**sizes).unsqueeze(-1).expand(-1, len(roots))
    return sizes, roots, (n * participation(n, (roots**2).expand_as(n))).log()


def _participation(n: Tensor, variance: Tensor) -> Tensor:
    g, w = gauss_hermite(64)
    g, w = g[g.abs() < FAR], w[g.abs() < FAR]
    e = (variance.sqrt().unsqueeze(-1) * g).exp().unsqueeze(-2)  # (k, 1, G)
    n = n.unsqueeze(-1)
    rate = LAMBDA.exp() / n  # (k, L)
    damped = torch.exp(-rate.unsqueeze(-1) * e) * w  # (k, L, G)
    one, squared = damped.sum(-1), (damped * e**2).sum(-1)
    others = ((n - 1) * one.clamp(min=1e-300).log()).exp()
    return torch.trapezoid(n * rate**2 * squared * others, LAMBDA, dim=-1)
