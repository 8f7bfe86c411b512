"""The token covariance S (..., n, n), S_ij = mean over channels of x_i x_j: its parts, and what steps make of it."""

import torch
from torch import Tensor

from depthscope.theory.kernels import deviations


def energies_of(S: Tensor) -> tuple[Tensor, Tensor]:
    """Common and centred energy per token and channel, (...) each: t_sim = common / (common + centred)."""
    n = S.shape[-1]
    common = S.sum((-2, -1)) / n**2
    return common, S.diagonal(dim1=-2, dim2=-1).mean(-1) - common


def rescaled(S: Tensor, common: Tensor | float, centred: Tensor | float) -> Tensor:
    """G S G with G = sqrt(a) J + sqrt(b) (1 - J), J = 1 1^T / n: a times the common energy and b times the centred.

    common = a, centred = b (...).
    """
    n = S.shape[-1]
    J = torch.full((n, n), 1 / n, dtype=S.dtype)
    a, b = (torch.as_tensor(x, dtype=S.dtype).clamp(min=0).sqrt()[..., None, None] for x in (common, centred))
    G = a * J + b * (torch.eye(n, dtype=S.dtype) - J)
    return G @ S @ G


def less_mean(n: int, tau: float, causal: bool) -> Tensor:
    """T = 1 - tau M (n, n), M the mean that DeEscalate takes: over all tokens, in causal models the sink form.

    M = 1 1^T / n,    causal: M_ts = 1[s <= t] / (t + 1), tokens counted from 1
    """
    M = torch.full((n, n), 1 / n, dtype=torch.float64)
    if causal:
        M = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(2, n + 2, dtype=torch.float64).unsqueeze(-1)
    return torch.eye(n, dtype=torch.float64) - tau * M


def de_escalated(S: Tensor, tau: float, causal: bool) -> Tensor:
    """T S T^T, T as in less_mean."""
    return mixed(S, less_mean(S.shape[-1], tau, causal))


def mixed(S: Tensor, C: Tensor) -> Tensor:
    """C S C^T: every token a sum of tokens, as attention or a mean makes them."""
    return C @ S @ C.mT


def normed(S: Tensor) -> Tensor:
    """What a norm hands on, D S D with D = diag(S)^(-1/2): the correlations of tokens."""
    return deviations(S)[1]


def uniform_attention(n: int, causal: bool) -> Tensor:
    """P (n, n) for scores that are all alike: 1 1^T / n, or the means over the past of a causal mask."""
    if not causal:
        return torch.full((n, n), 1 / n, dtype=torch.float64)
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
