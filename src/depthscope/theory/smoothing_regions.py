"""What the eigenvalues of H alone say: smoothing whatever attention does, never, or as attention decides.

Beyond Dovonon et al. 2024, whose conditions (all eigenvalues of H positive; all in [-1, 0)) are special cases.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.layer_spectrum import Eigenvalues, as_eigenvalues

_ROUNDING = 1e-12


class Disc(NamedTuple):
    """A disc in the complex plane of lambda_H; (...) both.

    Examples:
        >>> ds.theory.sharpening_disc(0.5)
        Disc(centre=tensor(-0.6667+0.j, dtype=torch.complex128), radius=tensor(0.6667, dtype=torch.float64))
    """

    centre: Tensor  # complex
    radius: Tensor


def always_smooths(eigenvalues_H: Eigenvalues) -> Tensor:
    """Whether X -> X + A X H makes tokens alike for every attention A with positive entries.

    always  <=>  the spectral radius of H is one of its eigenvalues

    (..., d) -> bool (...). |1 + h a| <= 1 + |h| |a| < 1 + rho for a != 1, and 1 + rho is reached at a = 1; if no
    eigenvalue is rho, one of that modulus and a nearly cyclic A give |1 + h a| close to 1 + rho. It also holds where A
    changes from layer to layer with H fixed: what differs between tokens, by its range over tokens, grows by at most
    1 + rho tau(A) < 1 + rho for each layer (tau: Dobrushin's coefficient). All lambda_H > 0 is the paper's case.

    Examples:
        >>> ds.theory.always_smooths([0.5, 0.1])
        tensor(True)
    """
    h = as_eigenvalues(eigenvalues_H, "eigenvalues_H", "always_smooths")
    rho = h.abs().amax(-1, keepdim=True)
    return ((h - rho).abs() <= _ROUNDING * rho).any(-1) & (rho.squeeze(-1) > 0)


def never_smooths(eigenvalues_H: Eigenvalues) -> Tensor:
    """Whether X -> X + A X H keeps tokens apart for every real attention A.

    never  <=>  of the lambda_H with the largest |1 + lambda_H| one lies in the disc |lambda_H + 1/2| <= 1/2

    (..., d), closed under conjugation as those of a real H -> bool (...). There |1 + h a|^2 = |1 + h|^2 +
    2 Re((h + |h|^2)(a - 1)) + |h|^2 |a - 1|^2, and a or its conjugate makes the second term >= 0; outside the disc
    A = (1 - eps) I + eps 1 1^T / n smooths. An eigenvalue 0 counts: what it carries is left as it was (a tie at
    worst). All lambda_H in [-1, 0) is the paper's case.

    Examples:
        >>> ds.theory.never_smooths([-0.5, -0.2]), ds.theory.never_smooths([0.5, -0.2])
        (tensor(True), tensor(False))
    """
    h = as_eigenvalues(eigenvalues_H, "eigenvalues_H", "never_smooths")
    largest = (1 + h).abs()
    first = largest >= largest.amax(-1, keepdim=True) - _ROUNDING
    return (first & ((h + 0.5).abs() <= 0.5 + _ROUNDING)).any(-1)


def sharpening_disc(lambda_A: complex | Tensor) -> Disc:
    """Where lambda_H must lie so that this eigenvalue of attention beats its 1: |1 + h a| > |1 + h|.

    |h - c| < r,    c = -(1 - conj(a)) / (1 - |a|^2),  r = |1 - a| / (1 - |a|^2)

    lambda_A (...), |a| < 1 -> Disc (...). It touches 0; for real a it is the disc over [-2 / (1 + a), 0]: [-1, 0]
    for a near 1, [-2, 0] for a = 0, the left half plane for a near -1. A real A that has a has its conjugate: the
    regions of both count.

    Examples:
        >>> ds.theory.sharpening_disc(0.0)
        Disc(centre=tensor(-1.+0.j, dtype=torch.complex128), radius=tensor(1., dtype=torch.float64))
    """
    a = torch.as_tensor(lambda_A, dtype=torch.complex128).detach()
    room = 1 - a.abs().square()
    if not bool((room > 0).all()):
        raise UsageError(
            f"sharpening_disc: lambda_A must lie inside the unit disc; got modulus {float(a.abs().max()):.6g}. "
            "Leave out the 1 of the constant vector: against itself there is nothing to decide."
        )
    return Disc(-(1 - a.conj()) / room, (1 - a).abs() / room)
