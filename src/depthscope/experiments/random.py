"""Random tokens X, attention matrices P and attention steps, for the theorems."""

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.metrics import xi

KINDS = ("row stochastic", "doubly stochastic", "symmetric", "causal")


def random_tokens(count: int, n: int, d: int) -> Tensor:
    """X (count, n, d) = c 1 v^T + Q log c uniform in (-2, 2): tokens from nearly orthogonal to nearly equal."""
    c = (4 * torch.rand(count, 1, 1, dtype=torch.float64) - 2).exp()
    return c * torch.randn(count, 1, d, dtype=torch.float64) + torch.randn(count, n, d, dtype=torch.float64)


def alike_tokens(t_sim: float, trials: int, n: int, d: int) -> Tensor:
    """X (trials, n, d): independent tokens without their mean, and one common to all that makes t_sim so."""
    common = (t_sim / (1 - t_sim)) ** 0.5
    X = torch.randn(trials, n, d, dtype=torch.float64)
    return X - X.mean(-2, keepdim=True) + common * torch.randn(trials, 1, d, dtype=torch.float64)


def random_attention(kind: str, count: int, n: int) -> Tensor:
    """P (count, n, n) of one of the KINDS; the scores' standard deviation is uniform in (0, 2)."""
    scores = torch.randn(count, n, n, dtype=torch.float64) * 2 * torch.rand(count, 1, 1, dtype=torch.float64)
    if kind == "row stochastic":
        return scores.softmax(-1)
    if kind == "causal":
        return scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)
    P = doubly_stochastic(scores.exp())
    return (P + P.transpose(-1, -2)) / 2 if kind == "symmetric" else P


def doubly_stochastic(K: Tensor) -> Tensor:
    """diag(u) K diag(v) with rows and columns that sum to 1 within 1e-10, by Sinkhorn's iteration; K (..., n, n)."""
    v = torch.ones_like(K[..., :1])
    for _ in range(100_000):
        u = 1 / (K @ v)
        columns = (K.transpose(-1, -2) @ u) * v
        if float((columns - 1).abs().max()) < 1e-10:
            return u * K * v.transpose(-1, -2)
        v = v / columns
    raise UsageError("doubly_stochastic: Sinkhorn's iteration must end; it did not. Draw scores of a smaller spread.")


def drawn_xi(X: Tensor, P: Tensor, alpha: Tensor, sigma: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """xi_1, xi_2 (draws, S) of Y = X + alpha [P_1 X W_1 ... P_h X W_h] for S cases, W ~ N(0, sigma^2).

    X (S, n, d), P (S, h, n, n), alpha and sigma (S,).
    """
    PX = P @ X.unsqueeze(1)  # (S, h, n, d)
    S, h, _, d = PX.shape
    W = torch.randn(draws, S, h, d, d // h, dtype=X.dtype) * sigma.view(S, 1, 1, 1)
    mixed = (PX @ W).transpose(-2, -3).flatten(-2)  # (draws, S, n, d)
    return xi(X.expand_as(mixed), X + alpha.view(S, 1, 1) * mixed)
