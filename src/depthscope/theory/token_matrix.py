"""Tokens by their overlaps, one for every pair: the maps of two_numbers.py for masks, positions and unequal tokens.

S_ij = mean over channels of x_i x_j. Random weights with mean zero keep the form, whatever the mask; two numbers are
the case in which all pairs are alike. Kernels are read off a table that is made once.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from depthscope.theory import covariance, two_numbers
from depthscope.theory.covariance import uniform_attention
from depthscope.theory.kernels import deviations
from depthscope.theory.participation import participation_by_table, together

POINTS = 4096  # of the table of a kernel; its error is below 1e-7


@dataclass(frozen=True, eq=False)
class TokenMatrix:
    """S (n, n), and whether a token sees only those before it."""

    S: Tensor
    causal: bool = False

    def of(self, S: Tensor) -> "TokenMatrix":
        return TokenMatrix(S, self.causal)


def attended(x: TokenMatrix, *, n: int, s_A: float, score_variance: float = 0.0) -> TokenMatrix:
    """s_A (C S C^T + F): C looks at all that may be seen alike, F is what fluctuations of the scores add."""
    C, m = _seen(n, x.causal)
    mixed = covariance.mixed(x.S, C).expand(n, n)
    if score_variance < 1e-9:
        return x.of(s_A * mixed)
    D = spread(x.S, C, m)
    return x.of(s_A * (mixed + fluctuations(score_variance * x.S.diagonal() * D, D, x.S, m)))


def spread(S: Tensor, C: Tensor, m: Tensor) -> Tensor:
    """The variance of a channel over the m tokens that a query sees by C (..., n, n), (..., n)."""
    own = (C * S.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)).sum(-1)
    return (own - ((C @ S) * C).sum(-1)).clamp(min=0) * m / (m - 1).clamp(min=1)


def fluctuations(variance: Tensor, D: Tensor, S_q: Tensor, m: Tensor) -> Tensor:
    """The covariance of what P adds by being uneven, (..., n, n), for queries whose scores have a variance (..., n).

    (Y_2 - 1/m) D for one query, D the spread of the values; as much of it as together() says for two. A query that
    sees fewer keys shares with one that sees more only those, and the other looks at each of them less.
    """
    Y = participation_by_table(m.expand_as(variance), variance)
    gain = ((Y - 1 / m) * D).clamp(min=0)
    _, cosine = deviations(S_q)
    sharpness = m * Y
    alike = together(torch.minimum(sharpness.unsqueeze(-1), sharpness.unsqueeze(-2)), cosine)
    few, many = m.unsqueeze(-1), m.unsqueeze(-2)
    one, other = gain.unsqueeze(-1), gain.unsqueeze(-2)
    least = torch.where(few == many, (one * other).sqrt(), torch.where(few < many, one, other))
    both = alike * (least * (torch.minimum(few, many) / torch.maximum(few, many)))
    both.diagonal(dim1=-2, dim2=-1).copy_(gain)
    return both


def networked(x: TokenMatrix, *, k: float, activation: str = "relu", hidden_variance: float = 1.0) -> TokenMatrix:
    """Exact for tokens of equal size, as norms make them; others scale their hidden units in proportion."""
    size, rho = deviations(x.S)
    q = float(size.square().mean())
    if k == 0 or q <= 0:
        return x.of(torch.zeros_like(x.S))
    variance = hidden_variance * q
    whole = two_numbers.hidden_overlaps(activation, variance, 0.0)[0]
    scale = k / two_numbers.hidden_overlaps(activation, hidden_variance, 0.0)[0]
    size = size / q**0.5
    return x.of(scale * (whole - _apart(activation, variance, 1 - rho)) * size.unsqueeze(-1) * size)


def joined(x: TokenMatrix, branch: TokenMatrix, *, skip: float = 1.0, weight: float = 1.0) -> TokenMatrix:
    return x.of(torch.add(skip**2 * x.S if skip != 1 else x.S, branch.S, alpha=weight**2))


def joined_again(z: TokenMatrix, x: TokenMatrix, *, weight: float, share: Tensor) -> TokenMatrix:
    """share (n,): every token of z holds its own."""
    return z.of(z.S + (weight**2 + weight * (share.unsqueeze(-1) + share)) * x.S)


def size(x: TokenMatrix) -> Tensor:
    return x.S.diagonal().clamp(min=1e-300).sqrt()


def normed(x: TokenMatrix) -> TokenMatrix:
    return x.of(covariance.normed(x.S))


def scaled(x: TokenMatrix, factor: float) -> TokenMatrix:
    return x.of(factor**2 * x.S)


def shifted(x: TokenMatrix, b: float) -> TokenMatrix:
    return x.of(x.S + b) if b else x


def de_escalated(x: TokenMatrix, *, n: int, tau: float) -> TokenMatrix:
    """With the mean of the tokens that may be seen."""
    return x.of(covariance.de_escalated(x.S, tau, x.causal))


@lru_cache
def _seen(n: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Uniform attention and how many tokens a query sees; without a mask one row stands for all."""
    C = uniform_attention(n, causal)
    return (
        (C, torch.arange(1, n + 1, dtype=torch.float64)) if causal else (C[:1], torch.tensor([n], dtype=torch.float64))
    )


def _apart(activation: str, variance: float, e: Tensor) -> Tensor:
    """K(1) - K(1 - e), linear in sqrt(e) between the points of a table of its quotient by e."""
    quotients = _quotients(activation, float(f"{variance:.12g}"))  # one table for variances that differ by rounding
    place = (e.clamp(0, 2) / 2).sqrt() * POINTS
    index = place.long().clamp(max=POINTS - 1)
    return e * quotients[index].lerp(quotients[index + 1], place - index)


@lru_cache(maxsize=256)
def _quotients(activation: str, variance: float) -> Tensor:
    e = 2 * (torch.arange(POINTS + 1, dtype=torch.float64) / POINTS) ** 2
    if activation == "relu":  # whose series converges slowly; a thousandth of a second for all points
        e[0] = 1e-12  # where the quotient has its limit
        apart = [two_numbers.hidden_overlaps(activation, variance, value)[1] for value in e.tolist()]
        return torch.tensor(apart, dtype=torch.float64) / e
    total = torch.zeros_like(e)
    for b in two_numbers.hermite_tails(activation, variance)[1]:
        total = total * (1 - e) + b
    return total
