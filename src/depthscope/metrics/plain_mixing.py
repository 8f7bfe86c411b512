"""delta, lambda_2 and omega of a mixing matrix whose rows are no probabilities: dense, in float64.

Signed entries and rows of any sum are allowed, so none of the bounds that hold for attention are used.
"""

import math
from typing import Any

import torch
from torch import Tensor

from depthscope.metrics.largest_eigenvalue import largest_modulus


def plain_mixing(M: Tensor, X: Tensor | None, mask: Tensor | None) -> dict[str, Tensor]:
    """M (B, h, n, n), X (B, n, d) or None, mask (B, n) or None -> delta, lambda_2, omega, (B, h) each.

    delta = |Pi_2 M|_2, lambda_2 = rho(Pi_2 M), omega = |e^T M Pi_2 X| / |e^T X|; rows and columns of padding left out.
    """
    found: dict[str, list[Tensor]] = {"delta": [], "lambda_2": [], "omega": []}
    for b in range(len(M)):
        keep = slice(None) if mask is None else mask[b]
        A = M[b].double()[:, keep][:, :, keep]
        centred = A - A.mean(-2, keepdim=True)
        found["delta"].append(_finite(torch.linalg.matrix_norm, centred, ord=2))
        found["lambda_2"].append(_finite(largest_modulus, centred))
        if X is None:
            found["omega"].append(torch.full(A.shape[:1], math.nan, dtype=torch.float64, device=A.device))
        else:
            x = X[b].double()[keep]
            moved = A.sum(-2) @ (x - x.mean(0))
            found["omega"].append(moved.norm(dim=-1) / x.sum(0).norm())
    return {name: torch.stack(values) for name, values in found.items()}


def _finite(measure: Any, C: Tensor, **how: Any) -> Tensor:
    """The measure of each matrix, NaN where one is not finite."""
    bad = ~C.isfinite().flatten(1).all(-1)
    return torch.where(bad, torch.nan, measure(torch.where(bad[:, None, None], 0.0, C), **how))
