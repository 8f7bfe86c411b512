"""Pure attention on tokens that are kept as their mean and their differences, which may be far below rounding.

X = 1 x^T + R,    P X W = 1 (x + R^T q)^T W + (P - 1 q^T) R W,
(P - 1 q^T)_ij = q_j (e^E_ij - 1 - s_i) / (1 + s_i),    s_i = sum_k q_k (e^E_ik - 1)

A float64 network cannot tell how fast tokens become equal: after two or three layers their differences are below its
rounding. With R kept by itself every difference has all its digits, down to 1e-90, whose cube is the last to be one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.theory.softmax_perturbation import score_residual


@dataclass(frozen=True)
class Split:
    """x (..., 1, d), the mean token, and R (..., n, d), the tokens without it."""

    x: Tensor
    R: Tensor

    @classmethod
    def of(cls, X: Tensor) -> "Split":
        x = X.double().mean(-2, keepdim=True)
        return cls(x, X.double() - x)

    @property
    def X(self) -> Tensor:
        return self.x + self.R

    def plus(self, other: "Split") -> "Split":
        return Split(self.x + other.x, self.R + other.R)


def split_attention(
    tokens: Split, W_Q: Tensor, W_K: Tensor, b_Q: Tensor, W_V: Tensor, W_O: Tensor, *, offset: Tensor, scale: float
) -> Split:
    """SA(X) = sum_h P_h X W_V,h W_O,h + 1 offset^T,  P_h = softmax((X W_Q,h + b_Q,h) (X W_K,h)^T scale), in two parts.

    W_Q, W_K (H, d, d_qk), b_Q (H, d_qk), W_V (H, d, d_v), W_O (H, d_v, d), offset (d,). A bias of the keys shifts whole
    rows of scores: softmax does not see it.
    """
    x, R = tokens.x.unsqueeze(-3), tokens.R.unsqueeze(-3)  # (..., 1, ., d): for every head
    r = scale * (x @ W_Q + b_Q.unsqueeze(-2)) @ (R @ W_K).mT  # (..., H, 1, n)
    q, E = r.softmax(-1), score_residual(tokens.R, W_Q, W_K, scale=scale)
    Z = (_moved(r, q, E) @ (R @ W_V) @ W_O).sum(-3)
    common = ((x + q @ R) @ W_V @ W_O).sum(-3) + offset
    mean = Z.mean(-2, keepdim=True)
    return Split(common + mean, Z - mean)


def _moved(r: Tensor, q: Tensor, E: Tensor) -> Tensor:
    """P - 1 q^T with all its digits where E is small; where it is not, the plain difference has them."""
    grown = torch.expm1(E.clamp(-1, 1))
    s = (q * grown).sum(-1, keepdim=True)
    small = E.abs().amax(-1, keepdim=True) <= 1
    return torch.where(small, q * (grown - s) / (1 + s), (r + E).softmax(-1) - q)
