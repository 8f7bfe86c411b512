"""The largest modulus of an eigenvalue, also where LAPACK's iteration does not end on a matrix."""

import math

import torch
from torch import Tensor


def largest_modulus(A: Tensor) -> Tensor:
    """max_i |lambda_i(A)| of each matrix, A (..., n, n) -> (...).

    The QR iteration may fail on matrices with many eigenvalues near zero, one in many thousands; a transposed matrix
    has the same eigenvalues, and another way to them. NaN where both fail.
    """
    try:
        return torch.linalg.eigvals(A).abs().amax(-1)
    except torch.linalg.LinAlgError:
        each = [_of_one(M) for M in A.reshape(-1, *A.shape[-2:])]
        return torch.stack(each).reshape(A.shape[:-2])


def _of_one(M: Tensor) -> Tensor:
    for form in (M, M.mT):
        try:
            return torch.linalg.eigvals(form).abs().amax(-1)
        except torch.linalg.LinAlgError:
            continue
    return torch.full((), math.nan, dtype=M.dtype, device=M.device)
