"""Tokens in two numbers: what one step of a block makes of their size and their overlap, each step a map on floats.

It is the form of token_matrix.py in which all tokens are alike (no mask, no positions): there the n x n overlaps are
p + D on the diagonal and p elsewhere, and stay so; the maps are the same by name. Random weights with mean zero make
the sums below exact for wide blocks; how far two queries fluctuate together is approximate, within 0.08. After Noci et
al. 2022 (2206.03126) and Giorlandino & Goldt 2025 (2505.24333).
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch

from depthscope.theory.kernels import activation_of, hermite_coefficients
from depthscope.theory.participation import LARGEST, participation

ROOTS = 40  # steps of the table of participation for one unit of sqrt(variance)


class Overlaps(NamedTuple):
    """p = mean x_i . x_j / d over pairs of tokens, D = q - p with q = mean |x_i|^2 / d.

    D and not q is kept: where tokens are alike, q - p would round to nothing.
    """

    p: float
    D: float

    @property
    def q(self) -> float:
        """The mean energy of a token, per channel."""
        return self.p + self.D

    @property
    def rho(self) -> float:
        """The cosine of two tokens; 1 where there is no energy."""
        return self.p / self.q if self.q > 0 else 1.0

    def t_sim(self, n: int) -> float:
        """(q + (n - 1) p) / (n q)."""
        return (self.p + self.D / n) / self.q if self.q > 0 else 1.0

    def t_div(self, n: int) -> float:
        """(n - 1) D / (n q), without the rounding of 1 - t_sim."""
        return (n - 1) * self.D / (n * self.q) if self.q > 0 else 0.0


def tokens_alike(t_sim: float, n: int, q: float = 1.0) -> Overlaps:
    """The overlaps of n tokens of energy q with that t_sim."""
    D = q * (1 - t_sim) * n / (n - 1) if n > 1 else 0.0
    return Overlaps(q - D, D)


def attended(x: Overlaps, *, n: int, s_A: float, score_variance: float = 0.0) -> Overlaps:
    """Attention without a mask, heads and output matrix included.

    p' = s_A (m + c Y),  D' = s_A (1 - c) Y,    m = p + D / n,  Y = (Y_2 - 1/n) D,  c = together(n Y_2, rho)

    s_A = d Var(W_V) d Var(W_O). v = score_variance q D is the variance of a query's scores over the keys, where
    score_variance = d Var(W_q) d Var(W_k); Y_2 is the participation ratio at v. Uniform attention, v = 0, has D' = 0.
    """
    m = x.p + x.D / n
    v = score_variance * x.q * x.D
    if v < 1e-9:
        return Overlaps(s_A * m, 0.0)
    Y_2 = _participation(n, v)
    Y = (Y_2 - 1 / n) * x.D
    w = max(math.log(n * Y_2), 1e-9)
    c = (math.exp(w * (x.rho - 1)) - math.exp(-w)) / -math.expm1(-w)  # together(), on floats
    return Overlaps(s_A * (m + c * Y), s_A * (1 - c) * Y)


def networked(x: Overlaps, *, k: float, activation: str = "relu", hidden_variance: float = 1.0) -> Overlaps:
    """A feed-forward network f(Y W_1) W_2, or (silu(Y W_gate) * Y W_1) W_2 for swiglu.

    q' = k K(1) / K_1(1),  p' = k K(rho) / K_1(1),    K(rho) = E f(u) f(v) at variance hidden_variance q,  K_1 at q = 1

    k is the energy for tokens of energy 1, see network_gain; hidden_variance = d Var(W_1). For ReLU K is the
    arc-cosine kernel, q' = k q at any variance.
    """
    if k == 0 or x.q <= 0:
        return Overlaps(0.0, 0.0)
    whole, apart = hidden_overlaps(activation, hidden_variance * x.q, x.D / x.q)
    scale = k / hidden_overlaps(activation, hidden_variance, 0.0)[0]
    return Overlaps(scale * (whole - apart), scale * apart)


def network_gain(activation: str, *, hidden_variance: float, s_2: float) -> float:
    """k = s_2 K(1): the energy that the network makes of tokens of energy 1, s_2 = q Var(W_2) with q hidden units.

    Examples:
        >>> round(float(ds.theory.network_gain("relu", hidden_variance=1.0, s_2=2.0)), 3)
        1.0
    """
    return s_2 * hidden_overlaps(activation, hidden_variance, 0.0)[0]


def joined(x: Overlaps, branch: Overlaps, *, skip: float = 1.0, weight: float = 1.0) -> Overlaps:
    """skip x + weight branch: energies add up, because fresh weights are independent of x."""
    return Overlaps(skip**2 * x.p + weight**2 * branch.p, skip**2 * x.D + weight**2 * branch.D)


def joined_again(z: Overlaps, x: Overlaps, *, weight: float, share: float) -> Overlaps:
    """z + weight x for a sum z that holds share x already: the two go together."""
    more = weight**2 + 2 * weight * share
    return Overlaps(z.p + more * x.p, z.D + more * x.D)


def size(x: Overlaps) -> float:
    """The root mean square of a channel of a token."""
    return math.sqrt(x.q)


def normed(x: Overlaps) -> Overlaps:
    """LayerNorm or RMSNorm: p / q and D / q; tokens of zeros stay so."""
    return Overlaps(x.p / x.q, x.D / x.q) if x.q > 0 else x


def scaled(x: Overlaps, factor: float) -> Overlaps:
    """factor x, energies by its square."""
    return Overlaps(factor**2 * x.p, factor**2 * x.D)


def shifted(x: Overlaps, b: float) -> Overlaps:
    """A bias of variance b, which all tokens share."""
    return Overlaps(x.p + b, x.D)


def de_escalated(x: Overlaps, *, n: int, tau: float) -> Overlaps:
    """(I - tau 1 1^T / n) X: p and q lose (2 tau - tau^2) m. Yu & Zhang 2023, eq. (21)."""
    return Overlaps((1 - tau) ** 2 * (x.p + x.D / n) - x.D / n, x.D)


def hidden_overlaps(activation: str, variance: float, e: float) -> tuple[float, float]:
    """K(1) and K(1) - K(1 - e) for hidden units of Gaussian inputs of that variance and correlation 1 - e.

    The difference has its full precision at any e: (1 - rho) sum_j b_j rho^j with b_j = sum_{k > j} a_k^2.
    """
    if activation == "relu":
        return variance / 2, variance / 2 * _apart_by_relu(e)
    whole, coefficients = hermite_tails(activation, variance)
    total, rho = 0.0, 1 - e
    for b in coefficients:
        total = total * rho + b
    return whole, e * total


def _apart_by_relu(e: float) -> float:
    """1 - kappa(1 - e),  kappa(cos t) = (sin t + (pi - t) cos t) / pi."""
    t = 2 * math.asin(math.sqrt(min(max(e, 0.0), 2.0) / 2))
    odd = math.sin(t) - t * math.cos(t) if t > 1e-3 else t**3 / 3 * (1 - t * t / 10)
    return e - odd / math.pi


@lru_cache(maxsize=4096)
def hermite_tails(activation: str, variance: float) -> tuple[float, list[float]]:
    """K(1), and the b_j from the highest degree down: made once for one activation and one variance."""
    gated = activation == "swiglu"
    f = activation_of("silu" if gated else activation)
    squares = hermite_coefficients(f, torch.tensor(variance, dtype=torch.float64).sqrt()).square().tolist()
    if gated:  # times the kernel of the other factor, variance rho: every power of rho is one higher
        squares = [0.0, *(variance * a for a in squares)]
    tails, rest = [], 0.0
    for a in reversed(squares[1:]):
        rest += a
        tails.append(rest)
    return rest + squares[0], tails


def _participation(n: int, variance: float) -> float:
    """Y_2 of n scores, linear in sqrt(variance) between the logarithms of a table."""
    logs = _participations(n)
    x = min(math.sqrt(variance) * ROOTS, len(logs) - 1.0)
    i = min(int(x), len(logs) - 2)
    Y = math.exp(logs[i] + (x - i) * (logs[i + 1] - logs[i]))
    return 1 - (1 - Y) * math.sqrt(LARGEST / max(LARGEST, variance))  # sharper(), on floats


@lru_cache
def _participations(n: int) -> list[float]:
    roots = torch.arange(int(ROOTS * LARGEST**0.5) + 1, dtype=torch.float64) / ROOTS
    return participation(torch.full_like(roots, n), roots**2).log().tolist()
