"""Attention of every kind, tokens, and steps with drawn weights: what the formulas are held against."""

import math

import torch

from depthscope.metrics import escalation_rate, xi

F = torch.float64
DRAWS = 20_000


def sinkhorn(A, rounds=600):
    for _ in range(rounds):
        A = A / A.sum(-1, keepdim=True)
        A = A / A.sum(-2, keepdim=True)
    return A / A.sum(-1, keepdim=True)


def attention(kind, *shape):
    """Row-stochastic P (*shape, n) of a kind, shape = (..., n)."""
    n = shape[-1]
    logits = torch.randn(*shape, n, dtype=F)
    if kind == "sharp":
        logits = 3 * logits
    if kind == "causal":
        logits = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
    if kind == "doubly stochastic":
        return sinkhorn(logits.exp())
    if kind == "symmetric":
        P = sinkhorn(((logits + logits.mT) / 2).exp())
        return (P + P.mT) / 2
    if kind == "uniform":
        return torch.full((*shape, n), 1 / n, dtype=F)
    if kind == "identity":
        return torch.eye(n, dtype=F).expand(*shape, n)
    return logits.softmax(-1)


KINDS = ["softmax", "sharp", "doubly stochastic", "symmetric", "causal", "uniform", "identity"]
# (kind of P, n, d, h, alpha, sigma): 28 single heads, and 28 with 2 to 4 heads of that kind
CASES = [
    (kind, n, d, h, alpha, sigma)
    for i, kind in enumerate(KINDS)
    for n, d, h, alpha, sigma in [
        (3 + i, 4, 2, 1.0, None),
        (12 - i, 12, 3, 0.5, 0.4),
        (4, 8, 4, 2.0, None),
        (5, 24 - 2 * i, 2, 1.5, 0.1 * (i + 1)),
    ]
]


def tokens(*shape):
    """Tokens with a mean that is neither small nor large, (..., n, d)."""
    return torch.randn(*shape, dtype=F) + torch.randn(*shape[:-2], 1, shape[-1], dtype=F)


def normal(*shape):
    return torch.randn(*shape, dtype=F)


def flat(*shape):
    """Uniform law with variance 1: no Gaussian."""
    return (2 * torch.rand(*shape, dtype=F) - 1) * math.sqrt(3)


def steps(X, P, alpha, sigma, law=normal, draws=DRAWS):
    """Y = X + alpha [P_1 X W_1 ... P_h X W_h] for as many W as draws, (draws, n, d). X (n, d), P (h, n, n)."""
    n, d = X.shape
    h = P.shape[0]
    W = (d**-0.5 if sigma is None else sigma) * law(draws, h, d, d // h)
    return X + alpha * ((P @ X) @ W).permute(0, 2, 1, 3).reshape(draws, n, d)


def growths(X, Y):
    """xi_1, xi_2 and r of every draw."""
    X = X.expand_as(Y)
    return *xi(X, Y), escalation_rate(X, Y)


def assert_mean(values, expected):
    """The mean of the draws is the expected number, within three standard errors."""
    error = values.std() / math.sqrt(len(values))
    away = float((values.mean() - expected).abs())
    assert away <= 3 * error + 1e-12, f"{away / error:.2f} standard errors away"


def delta_by_definition(P):
    return torch.linalg.matrix_norm(P - P.mean(-2, keepdim=True), 2)
