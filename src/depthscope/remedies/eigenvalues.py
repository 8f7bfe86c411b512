"""A matrix by its eigenvalues, H = V diag(lambda) V^-1: sets for lambda, two forms of V, and both from a given H."""

import math
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import ConditionError

BOUNDS = {  # where the eigenvalues of H may lie
    "sharpen": (-1.0, 0.0),
    "sharpen_square": (-math.inf, 0.0),
    "smooth": (0.0, math.inf),
    "free": (-math.inf, math.inf),
}
SQUARES = {"sharpen_square": -1.0, "smooth": 1.0}  # lambda = sign psi^2
LEAST_SQUARE = 1e-2  # of the largest |lambda|, for a square at the start: at 0 its gradient is 0
DIGITS = 1e-2  # what may be lost: V is refused when cond_1(V) > DIGITS / eps


class _Clip(torch.autograd.Function):
    """clip(psi, low, high) whose gradient passes inside, and outside where a descent would lead back inside.

    The plain clip has none outside: an eigenvalue that leaves the interval by one step would stay at its end for good.
    """

    @staticmethod
    def forward(ctx: Any, psi: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(psi)
        ctx.ends = low, high
        return psi.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None]:
        (psi,), (low, high), slope = ctx.saved_tensors, ctx.ends, slopes[0]
        leaves = ((psi > high) & (slope < 0)) | ((psi < low) & (slope > 0))
        return slope.masked_fill(leaves, 0.0), None, None


def eigenvalues(psi: Tensor, mode: str) -> Tensor:
    """lambda (d,) from free numbers psi (d,): clip(psi, -1, 0), -psi^2, +psi^2 or psi."""
    if mode in SQUARES:
        return SQUARES[mode] * psi.square()
    return psi if mode == "free" else _Clip.apply(psi, *BOUNDS[mode])


def psi_of(wanted: Tensor, mode: str) -> Tensor:
    """The psi (d,) whose eigenvalues are the nearest to the wanted ones that the mode allows and can learn from."""
    if mode in SQUARES:
        return (SQUARES[mode] * wanted).clamp(min=LEAST_SQUARE * float(wanted.abs().max())).sqrt()
    return wanted.clamp(*BOUNDS[mode])


def orthogonal(Theta: Tensor) -> Tensor:
    """V (d, d) = the Q of Theta = Q R with diag(R) > 0, which makes it unique, and a smooth function of Theta."""
    Q, R = torch.linalg.qr(Theta)
    return Q * torch.where(R.diagonal() < 0, -1.0, 1.0).to(Q)


def inverse(V: Tensor, where: str) -> Tensor:
    """V^-1 (d, d); refused where cond_1(V) = |V|_1 |V^-1|_1 leaves less than two digits of the dtype."""
    found, _ = torch.linalg.inv_ex(V)
    condition, limit = condition_of(V, found), DIGITS / torch.finfo(V.dtype).eps
    if not condition <= limit:
        raise ConditionError(
            f"{where}: V must be invertible with cond_1(V) <= {limit:.1e} in {V.dtype}; got {condition:.1e}. "
            "Use form='symmetric', whose V is orthogonal, or a smaller learning rate."
        )
    return found


def nearest(H: Tensor, form: str, mode: str, heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(psi (d,), V (d, d)) from which a form starts: as near to H (d, d), in float64, as the mode allows.

    The direct form takes the eigenvectors of H, or of its symmetric part where that is nearer or the first cannot be
    inverted with a digit to spare in the dtype: a random H of complex eigenvalues has no real eigenvectors to keep.
    """
    lam, V = from_symmetric(H, heads)
    symmetric = psi_of(lam, mode), V
    if form == "symmetric":
        return symmetric
    lam, V = from_general(H, heads)
    own, V_inverse = psi_of(lam, mode), torch.linalg.inv_ex(V)[0]
    if not condition_of(V, V_inverse) <= 0.1 * DIGITS / torch.finfo(dtype).eps:
        return symmetric
    errors = [
        (W * eigenvalues(psi, mode) @ W_inverse - H).norm()
        for psi, W, W_inverse in ((own, V, V_inverse), (*symmetric, symmetric[1].mT))
    ]
    return (own, V) if errors[0] <= errors[1] else symmetric


@torch.no_grad()
def condition_of(V: Tensor, V_inverse: Tensor) -> float:
    """cond_1(V) = |V|_1 |V^-1|_1, |.|_1 the largest column sum."""
    return float(torch.linalg.matrix_norm(V, 1) * torch.linalg.matrix_norm(V_inverse, 1))


def from_symmetric(H: Tensor, heads: int = 1) -> tuple[Tensor, Tensor]:
    """(lambda (d,), V (d, d) orthogonal) of the symmetric part (H + H^T) / 2, which is the nearest symmetric matrix."""
    lam, V = torch.linalg.eigh((H + H.mT) / 2)
    order = dealt(len(lam), heads)
    return lam[order], V[:, order]


def from_general(H: Tensor, heads: int = 1) -> tuple[Tensor, Tensor]:
    """(lambda (d,), V (d, d) real) of H: of complex pairs lambda = a +- ib with eigenvectors u +- iw, a twice, u and w.

    Where all eigenvalues are real, H = V diag(lambda) V^-1; the turning part b of a pair has no place in it.
    """
    values, vectors = torch.linalg.eig(H)
    second = values.imag < 0  # of each pair; torch gives both
    V = torch.where(second, vectors.imag, vectors.real)
    ascending = values.real.argsort()[dealt(len(values), heads)]
    V = V[:, ascending]
    return values.real[ascending], V / torch.linalg.vector_norm(V, dim=0)


def dealt(d: int, heads: int) -> Tensor:
    """The order in which d ascending eigenvalues are dealt to the heads in turn, so that each has large and small."""
    return torch.arange(d).view(-1, heads).T.flatten()
