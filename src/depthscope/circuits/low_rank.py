"""A product of two thin matrices, taken apart again."""

import torch
from torch import Tensor

OVERSAMPLED = 8


def factors(W: Tensor, *, tolerance: float = 1e-6) -> tuple[Tensor, Tensor]:
    """W (H, d, e) of low rank r -> (H, d, r), (H, r, e) whose product it is; r is the largest rank of all.

    The range of W is found from its products with a few random vectors (Halko et al. 2011), first about e / H of them,
    as heads have it, and with all where that is not enough.
    """
    H, _, e = W.shape
    size = W.abs().amax((-2, -1), keepdim=True).clamp(min=1e-300)
    draw = torch.Generator().manual_seed(0)
    for guess in (min(e, e // H + OVERSAMPLED), e):
        Omega = torch.randn(e, guess, generator=draw, dtype=W.dtype)
        Q = torch.linalg.qr(W @ Omega).Q  # (H, d, guess)
        if bool(((W - Q @ (Q.mT @ W)).abs() <= tolerance * size).all()):
            break
    U, s, Vh = torch.linalg.svd(Q.mT @ W, full_matrices=False)
    rank = max(1, int((s > tolerance * s[:, :1]).sum(-1).max()))
    return Q @ U[..., :rank], s[..., :rank, None] * Vh[..., :rank, :]
