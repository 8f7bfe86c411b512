"""Weights over tokens: the few means of tokens that a law keeps, and the size of each token among the others."""

from functools import lru_cache

import torch
from torch import Tensor


def own_sizes(energies: Tensor) -> Tensor:
    """The size of each token among the others, from energies (B, n): 1 where all are alike or nothing is there."""
    largest = energies.amax(-1, keepdim=True).clamp(min=1e-300)
    return (energies / largest).clamp(min=1e-24).sqrt()


@lru_cache
def identity(n: int) -> Tensor:
    """The identity of n tokens; never to be written into."""
    return torch.eye(n, dtype=torch.float64)


@lru_cache
def modes(n: int, most: int = 6) -> Tensor:
    """Orthonormal weights over n tokens, (n, r): the mean, and what prefix means keep most of (causal attention)."""
    prefix = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    ones = torch.ones(n, 1, dtype=torch.float64)
    leading = torch.linalg.svd(prefix).Vh[: min(most, n) - 1].T
    return torch.linalg.qr(torch.cat([ones, leading], 1)).Q
