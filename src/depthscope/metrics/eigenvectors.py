"""The spectral radius of small matrices from LAPACK's eigenvectors, with an error that holds (Bauer & Fike 1960)."""

import math

import torch
from torch import Tensor

TRUSTED = 1e-3  # n eps cond(V): beyond it, the inverse of V is not worth much


def radius_by_eigenvectors(A: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """max |lambda(A + E)| and how far it may be off, (b,) each, for A (b, n, n) and every |E|_F <= rounding (b,).

    With A V = V L + R, the eigenvalues of A + E are those of L + F, F = V^-1 (R + E V). Each lies within |F|_2 of one
    in L, and the n discs around L hold n of them; so that the largest is off by no more than the 2 n |F|_2 that a chain
    of discs is wide. The rounding of R itself is below n eps |A| |V|. Infinite where LAPACK cannot tell.
    """
    n, eps = A.shape[-1], torch.finfo(A.dtype).eps
    L, V = _eig(A)
    inverse, _ = torch.linalg.inv_ex(V)
    R = A.to(V.dtype) @ V - V * L.unsqueeze(-2)
    size_A, size_V, size_inverse, size_R = (torch.linalg.vector_norm(M, dim=(-2, -1)) for M in (A, V, inverse, R))
    error = 2 * n * size_inverse * (size_R + (n * eps * size_A + rounding) * size_V)
    known = n * eps * size_V * size_inverse < TRUSTED  # false for NaN
    return L.abs().amax(-1).nan_to_num(0.0), torch.where(known, error, math.inf)


def _eig(A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (b, n) and eigenvectors (b, n, n); NaN for the matrices on which LAPACK does not converge."""
    try:
        return torch.linalg.eig(A)
    except torch.linalg.LinAlgError:
        if len(A) == 1:
            nothing = torch.full_like(A, math.nan).to(torch.promote_types(A.dtype, torch.complex64))
            return nothing[:, 0], nothing
    halves = [_eig(half) for half in A.split(-(-len(A) // 2))]
    L, V = (torch.cat(column) for column in zip(*halves, strict=True))
    return L, V
