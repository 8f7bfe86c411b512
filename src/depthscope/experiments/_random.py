"""Random tokens X, attention matrices P and attention steps, for the theorems."""

import torch
from torch import Tensor

from depthscope.metrics import xi

KINDS = ("row stochastic", "doubly stochastic", "symmetric", "causal")
ROUNDS = 200  # of Sinkhorn's iteration: doubly stochastic to about 1e-8 for the scores drawn here


def random_tokens(count: int, n: int, d: int) -> Tensor:
    """X (count, n, d) = c 1 v^T + Q log c uniform in (-2, 2): tokens from nearly orthogonal to nearly equal."""
    c = (4 * torch.rand(count, 1, 1, dtype=torch.float64) - 2).exp()
    return c * torch.randn(count, 1, d, dtype=torch.float64) + torch.randn(count, n, d, dtype=torch.float64)


def random_attention(kind: str, count: int, n: int) -> Tensor:
    """P (count, n, n) of one of the KINDS; the scores' standard deviation is uniform in (0, 2)."""
    scores = torch.randn(count, n, n, dtype=torch.float64) * 2 * torch.rand(count, 1, 1, dtype=torch.float64)
    if kind == "row stochastic":
        return scores.softmax(-1)
    if kind == "causal":
        return scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    if kind == "symmetric":
        scores = (scores + scores.transpose(-1, -2)) / 2**0.5
        for _ in range(ROUNDS):  # the damped iteration keeps the symmetry
            half = scores.logsumexp(-1, keepdim=True) / 2
            scores = scores - half - half.transpose(-1, -2)
        return scores.exp()
    for _ in range(ROUNDS):
        scores = scores.log_softmax(-2).log_softmax(-1)
    return scores.exp()


def drawn_xi(X: Tensor, P: Tensor, alpha: Tensor, sigma: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """xi_1, xi_2 (draws, S) of Y = X + alpha [P_1 X W_1 ... P_h X W_h] for S cases, W ~ N(0, sigma^2).

    X (S, n, d), P (S, h, n, n), alpha and sigma (S,).
    """
    PX = P @ X.unsqueeze(1)  # (S, h, n, d)
    S, h, _, d = PX.shape
    W = torch.randn(draws, S, h, d, d // h, dtype=X.dtype) * sigma.view(S, 1, 1, 1)
    mixed = (PX @ W).transpose(-2, -3).flatten(-2)  # (draws, S, n, d)
    return xi(X.expand_as(mixed), X + alpha.view(S, 1, 1) * mixed)
