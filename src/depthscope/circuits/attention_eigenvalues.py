"""The eigenvalues of attention matrices, complex ones too."""

import torch
from torch import Tensor

from depthscope.errors import StochasticError

OFF = 1e-2  # rows of half-precision probabilities may sum to 1 this badly


def attention_eigenvalues(P: Tensor) -> Tensor:
    """P (..., n, n), rows that sum to 1 -> (..., n) complex128, the 1 of the constant vector among them.

    A causal P is triangular: its eigenvalues are its diagonal, all real and positive.
    """
    P = P.double()
    sums = P.sum(-1, keepdim=True)
    off = float((sums - 1).abs().max())
    if not off <= OFF:
        raise StochasticError(
            f"the rows of attention must sum to 1 (attention that keeps equal tokens equal); they are off by "
            f"{off:.2g}. Sinks and gates inside the softmax are not covered by the theory."
        )
    P = P / sums
    if bool((P.triu(1) == 0).all()):
        return P.diagonal(dim1=-2, dim2=-1).to(torch.complex128)
    return torch.linalg.eigvals(P)
