"""Formulas for the attention matrix P (Algorithm 1, step 0), each a function of queries and keys.

A formula returns logits L with P = softmax(L) row by row, so that every P is row-stochastic by construction and is
seen by a scan. q, k (..., n, d_h) -> L (..., n, n); `allowed` (n, n) is True where a row may look, None for all.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope._registry import shelve

SINKHORN_ROUNDS = 30


def _only(logits: Tensor, allowed: Tensor | None) -> Tensor:
    return logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)


def _products(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5


@shelve("attention")
def softmax(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """P_ij ~ exp(q_i . k_j / sqrt(d_h)).    Yu & Zhang 2023, eq. (2)"""
    return _only(_products(q, k), allowed)


@shelve("attention")
def uniform(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """P_ij ~ 1: the limit of all formulas when tokens are alike; P = 1 1^T / n without a mask"""
    return _only(q.new_zeros(*q.shape[:-1], k.shape[-2]), allowed)


@shelve("attention")
def sigmoid(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """P_ij ~ 1 / (1 + exp(-q_i . k_j / sqrt(d_h))), rows divided by their sums"""
    return _only(F.logsigmoid(_products(q, k)), allowed)


@shelve("attention")
def gaussian(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """P_ij ~ exp(-|q_i - k_j|^2 / (2 sqrt(d_h)))"""
    keys = k.square().sum(-1).unsqueeze(-2) * (0.5 * k.shape[-1] ** -0.5)  # |q_i|^2 is the same along a row: left out
    return _only(_products(q, k) - keys, allowed)


@shelve("attention")
def sinkhorn(q: Tensor, k: Tensor, allowed: Tensor | None = None) -> Tensor:
    """P = diag(u) exp(q k^T / sqrt(d_h)) diag(v), doubly stochastic by Sinkhorn's iteration (Sander et al. 2022)

    Under a causal mask there is only one doubly stochastic matrix, the identity. It is returned as such: rounds of the
    iteration would come close to it slowly, and their column sums would show every token its future.
    """
    logits = _products(q, k)
    if allowed is not None and not bool(allowed.all()):
        return torch.zeros_like(logits).masked_fill(~torch.eye(len(allowed), dtype=torch.bool), -torch.inf)
    for _ in range(SINKHORN_ROUNDS):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits
