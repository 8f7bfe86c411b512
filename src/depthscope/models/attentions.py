"""Formulas for the attention matrix P (Algorithm 1, step 0), each a function of queries and keys.

A formula returns logits L with P = softmax(L) row by row, so that every P is row-stochastic by construction and is
seen by a scan. q, k (..., n, d_h) -> L (..., n, n); causal: no token looks at those after it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.registry import shelve

SINKHORN_ROUNDS = 150


def _only(logits: Tensor, causal: bool) -> Tensor:
    if not causal:
        return logits
    later = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(1)
    return logits.masked_fill(later, -torch.inf)


def _products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


@shelve("attention")
def softmax(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """P_ij ~ exp(q_i . k_j / sqrt(d_h)).    Yu & Zhang 2023, eq. (2)"""
    return _only(_products(q, k), causal)


@shelve("attention")
def uniform(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """P_ij ~ 1: the limit of all formulas when tokens are alike; P = 1 1^T / n without a mask"""
    return _only(q.new_zeros(*q.shape[:-1], k.shape[-2]), causal)


@shelve("attention")
def sigmoid(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """P_ij ~ 1 / (1 + exp(-q_i . k_j / sqrt(d_h))), rows divided by their sums"""
    return _only(F.logsigmoid(_products(q, k)), causal)


@shelve("attention")
def gaussian(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """P_ij ~ exp(-|q_i - k_j|^2 / (2 sqrt(d_h)))"""
    keys = k.square().sum(-1).unsqueeze(-2) * (0.5 * k.shape[-1] ** -0.5)  # |q_i|^2 is the same along a row: left out
    return _only(_products(q, k) - keys, causal)


@shelve("attention")
def sinkhorn(q: Tensor, k: Tensor, causal: bool = False) -> Tensor:
    """P = diag(u) exp(q k^T / sqrt(d_h)) diag(v), doubly stochastic by Sinkhorn's iteration (Sander et al. 2022)

    Columns are right to 1e-4 for scores of standard deviation up to 2; sharper ones would need more rounds, rows always
    sum to 1. Under a causal mask there is only one doubly stochastic matrix, the identity. It is returned as such: the
    iteration would come close to it slowly, and its column sums would show every token its future.
    """
    logits = _products(q, k)
    if causal:
        own = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
        return torch.zeros_like(logits).masked_fill(~own, -torch.inf)
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits
