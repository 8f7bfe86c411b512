"""Matrices H with known eigenvalues, and attention whose eigenvalues are far from real."""

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.experiments.random import random_attention

F = torch.float64
LAWS = ("in [-1, 0)", "positive", "real", "complex")


def check_even(d: int) -> None:
    if d % 2:
        raise UsageError(f"d must be even, for eigenvalues in conjugate pairs; got {d}. Give {d + 1}.")


def random_H(law: str, cases: int, d: int) -> tuple[Tensor, Tensor]:
    """H (cases, d, d) = V D V^-1 and its eigenvalues (cases, d) by one of the LAWS; the condition of V is at most e.

    Real: uniform in an interval of length 4 s that begins between -4 s and -s, s uniform in (0.2, 1). Complex:
    conjugate pairs, modulus uniform in (0, 2) and any angle; d is even.
    """
    u = torch.rand(cases, d, dtype=F)
    s, begin = 0.2 + 0.8 * torch.rand(cases, 1, dtype=F), -4 + 3 * torch.rand(cases, 1, dtype=F)
    real = {"in [-1, 0)": -1 + 0.999 * u, "positive": 0.001 + 2 * u, "real": s * (begin + 4 * u)}
    if law in real:
        return similar(torch.diag_embed(real[law])), real[law].to(torch.complex128)
    h = torch.polar(2 * u[:, : d // 2], 2 * torch.pi * torch.rand(cases, d // 2, dtype=F))
    turns = torch.stack([h.real, h.imag, -h.imag, h.real], -1).unflatten(-1, (2, 2))  # (cases, d/2, 2, 2)
    D = torch.zeros(cases, d // 2, 2, d // 2, 2, dtype=F)
    pairs = torch.arange(d // 2)
    D[:, pairs, :, pairs, :] = turns.transpose(0, 1)
    return similar(D.reshape(cases, d, d)), torch.cat([h, h.conj()], -1)


def similar(D: Tensor) -> Tensor:
    """V D V^-1 with a random V = Q_1 diag(s) Q_2, log s uniform in (-1/2, 1/2)."""
    cases, d = D.shape[:2]
    s = (torch.rand(cases, 1, d, dtype=F) - 0.5).exp()
    Q_1, Q_2 = orthogonal(cases, d), orthogonal(cases, d)
    V, V_inverse = (Q_1 * s) @ Q_2, Q_2.mT @ (Q_1 / s).mT
    return V @ D @ V_inverse


def orthogonal(cases: int, d: int) -> Tensor:
    return torch.linalg.qr(torch.randn(cases, d, d, dtype=F)).Q


def cyclic_attention(cases: int, n: int) -> Tensor:
    """A (cases, n, n): part p of every token's attention, p uniform in (0.3, 0.95), goes to the token after it."""
    p = 0.3 + 0.65 * torch.rand(cases, 1, 1, dtype=F)
    after = torch.eye(n, dtype=F).roll(1, -1)
    return p * after + (1 - p) * random_attention("row stochastic", cases, n)
