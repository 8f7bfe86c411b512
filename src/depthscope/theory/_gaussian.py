"""The law of N = |Pi_1 Y|_F^2 and D = |Pi_2 Y|_F^2 for Y = X + alpha P X W with Gaussian W, in its own coordinates.

With e = 1 / sqrt(n), x = e^T X, a_k = alpha sigma e^T P_k X and B_k = alpha sigma Pi_2 P_k X = U S V^T, column c of
head k gives x_c + a_k^T g to N and |b_c + B_k g|^2 to D, where b = Pi_2 X and g is standard normal. Columns are
independent. Tilted by exp(-s D), g is normal again: along V its variance is 1 / (1 + 2 s S^2), and its mean moves to
-2 s S U^T b_c / (1 + 2 s S^2).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.checks import check_stochastic, check_tokens
from depthscope.errors import ShapeError, UsageError
from depthscope.theory.numbers import Number, checked

_EPS = torch.finfo(torch.float64).eps


class Draws(NamedTuple):
    """What the law needs, (...) in front; r = min(n - 1, d) directions for each head."""

    x: Tensor  # (..., h, d/h)
    a: Tensor  # (..., h, r), a_k along V
    a_rest: Tensor  # (..., h), |a_k|^2 outside V
    S: Tensor  # (..., h, r)
    b: Tensor  # (..., h, r, d/h), U^T b
    b_rest: Tensor  # (...), |b|_F^2 where S = 0: no weights can cancel it
    common: Tensor  # (...), |Pi_1 X|_F^2
    centred: Tensor  # (...), |Pi_2 X|_F^2
    E_N: Tensor  # (...)
    E_D: Tensor  # (...)


def draws(X: Tensor, P: Tensor, alpha: Number, sigma: Number | None, *, where: str) -> Draws:
    """The law for given tokens and attention."""
    _check(X, P, where)
    n, d = X.shape[-2:]
    scale = _scale(X, alpha, sigma, where)  # (..., 1)
    X, P = X.detach().double(), P.detach().double()
    P = P if P.ndim == X.ndim + 1 else P.unsqueeze(-3)  # (..., h, n, n)
    h = P.shape[-3]
    x = X.sum(-2) / math.sqrt(n)  # (..., d)
    Pi_2_X = X - X.mean(-2, keepdim=True)
    common, centred = x.square().sum(-1), Pi_2_X.square().sum((-2, -1))
    _check_parts(common, centred, where)

    mixed = P @ Pi_2_X.unsqueeze(-3)  # (..., h, n, d); P 1 = 1, so that the common part needs no product
    a = scale[..., None] * (x.unsqueeze(-2) + mixed.sum(-2) / math.sqrt(n))  # (..., h, d)
    B = scale[..., None, None] * _coordinates(mixed)  # (..., h, n - 1, d)
    U, S, Vh = torch.linalg.svd(B, full_matrices=False)
    rounding = 8 * max(n, d) * _EPS * centred.sqrt()  # what the products above leave of an exact zero
    S = torch.where(S > (scale * rounding[..., None])[..., None], S, 0.0)
    a_V = (Vh @ a.unsqueeze(-1)).squeeze(-1)  # (..., h, r)
    a_rest = (a - (a_V.unsqueeze(-2) @ Vh).squeeze(-2)).square().sum(-1)
    b = _coordinates(Pi_2_X).unflatten(-1, (h, d // h)).movedim(-2, -3)  # (..., h, n - 1, d/h)
    b_U = U.mT @ b
    b_rest = (b - U @ b_U).square().sum((-3, -2, -1))  # not |b|^2 - |b_U|^2, which rounds to eps instead of eps^2
    b_rest = b_rest + torch.where(S > 0, 0.0, b_U.square().sum(-1)).sum((-2, -1))
    b_rest = torch.where(b_rest > rounding**2, b_rest, 0.0)
    b_U = torch.where(S[..., None] > 0, b_U, 0.0)
    E_N = common + a.square().sum((-2, -1)) * (d // h)
    E_D = centred + B.square().sum((-3, -2, -1)) * (d // h)
    return Draws(x.unflatten(-1, (h, d // h)), a_V, a_rest, S, b_U, b_rest, common, centred, E_N, E_D)


def integrand(law: Draws, u: Tensor) -> Tensor:
    """s E[N exp(-s D)] at s = exp(u) / E[D], for u (q,) -> (..., q)."""
    columns = law.x.shape[-1]
    s = u.exp() / law.E_D[..., None]  # (..., q)
    S, a = law.S.unsqueeze(-2), law.a.unsqueeze(-2)  # (..., h, 1, r)
    s_S2 = 2 * s[..., None, :, None] * S.square()  # (..., h, q, r)
    shrink = 1 / (1 + s_S2)
    rate = law.b_rest[..., None] + (shrink @ law.b.square().sum(-1, keepdim=True)).squeeze(-1).sum(-2)  # (..., q)
    log_E = -0.5 * columns * s_S2.log1p().sum((-3, -1)) - s * rate  # log E[exp(-s D)]
    moved = (2 * s[..., None, :, None] * S * a * shrink) @ law.b  # (..., h, q, d/h)
    mean = (law.x.unsqueeze(-2) - moved).square().sum((-3, -1))  # (..., q)
    variance = ((a.square() * shrink).sum(-1) + law.a_rest.unsqueeze(-1)).sum(-2)
    return (u + log_E - law.E_D.log()[..., None]).exp() * (mean + columns * variance)


def tail(law: Draws) -> tuple[float, Tensor]:
    """The u past which the integrand only falls, for the whole batch, and where its integral is infinite, (...).

    Far out it goes like exp((1 - directions / 2) u): three random directions in D make the mean finite, and so does
    a part of D that no weights can cancel.
    """
    columns = law.x.shape[-1]
    positive = law.S > 0
    directions = columns * positive.sum((-2, -1))
    times = law.S.repeat_interleave(min(columns, 3), -1).flatten(-2)
    third = 2 * times.topk(min(3, times.shape[-1])).values[..., -1].square()
    last = torch.where(positive, 2 * law.S.square(), math.inf).amin((-2, -1))
    fixed = torch.where(law.b_rest > 0, law.b_rest, math.inf)
    scale = torch.where(directions >= 3, third, torch.minimum(last, fixed))

    inverse = torch.where(positive, 1 / law.S, 0.0)
    at_zero = (law.x - ((law.a * inverse).unsqueeze(-2) @ law.b).squeeze(-2)).square().sum((-2, -1))
    free = law.a_rest.sum(-1) + torch.where(positive, 0.0, law.a.square()).sum((-2, -1))
    N_left = at_zero + columns * free  # E[N] where D = 0
    infinite = (directions <= 2) & (law.b_rest == 0) & (N_left > 1e-26 * (law.E_N + law.E_D))
    return float((law.E_D / scale).log().max()), infinite


def _coordinates(M: Tensor) -> Tensor:
    """Pi_2 M (..., n, d) in an orthonormal basis of what is orthogonal to 1, (..., n - 1, d): a Householder mirror."""
    M = M - M.mean(-2, keepdim=True)
    return M[..., 1:, :] - M[..., :1, :] / (math.sqrt(M.shape[-2]) + 1)


def _scale(X: Tensor, alpha: Number, sigma: Number | None, where: str) -> Tensor:
    sigma = 1 / math.sqrt(X.shape[-1]) if sigma is None else sigma
    alpha, sigma = checked(where, alpha=alpha, sigma=sigma)
    scale = torch.as_tensor(alpha * sigma, dtype=torch.float64, device=X.device)
    if scale.ndim > X.ndim - 2:
        raise ShapeError(
            f"{where}: alpha and sigma must be numbers or fit the batch axes of X; got {tuple(scale.shape)} "
            f"for X {tuple(X.shape)}. Repeat X to draw several values for one X."
        )
    return scale.expand(X.shape[:-2])[..., None]


def _check(X: Tensor, P: Tensor, where: str) -> None:
    check_tokens(X, where=where)
    batch, n, d = tuple(X.shape[:-2]), X.shape[-2], X.shape[-1]
    heads = P.shape[-3] if P.ndim == X.ndim + 1 else 1
    if tuple(P.shape) not in {(*batch, n, n), (*batch, heads, n, n)}:
        raise ShapeError(
            f"{where}: P must be (..., n, n) or (..., h, n, n) for X (..., n, d); got P {tuple(P.shape)} and "
            f"X {tuple(X.shape)}. The batch axes come first in both."
        )
    if d % heads:
        raise ShapeError(f"{where}: the number of heads must divide d; got {heads} heads and d = {d}. Check P's axes.")
    check_stochastic(P, where=where)
    if not bool(X.isfinite().all()):
        raise UsageError(f"{where}: X must be finite; got NaN or infinity. Find the block where it first appears.")


def _check_parts(common: Tensor, centred: Tensor, where: str) -> None:
    for part, word, hint in [
        (centred, "tokens that differ", "All tokens are equal: xi_2 has no meaning."),
        (common, "a mean token", "The tokens sum to zero: xi_1 has no meaning."),
    ]:
        gone = part <= (8 * _EPS) ** 2 * (common + centred)
        if bool(gone.any()):
            raise UsageError(f"{where}: X must have {word}; got {int(gone.sum())} of {gone.numel()} without. {hint}")
