"""Largest singular value and spectral radius of A = Pi_2 P from products with P alone, many heads at once.

Block Krylov spaces: reading P costs more than multiplying by it, so a few vectors share every pass. They start from
fixed random vectors, so that the same P gives the same number, and stop when every head's residual is small.
"""

import torch
from torch import Tensor

from depthscope.metrics.pattern import Pattern

WIDTH = 8  # vectors that share a pass over P
PASSES = 16  # the most passes
TINY = 1e-30
MISSED = 0.14  # chi^2 with 8 degrees of freedom is below this once in a million


def largest_singular_value(pattern: Pattern, tolerance: float) -> tuple[Tensor, Tensor]:
    """s = |A|_2 from below, |A v| / |v| for the best v found, and how much larger it may be, each (size,)."""
    most = _most(pattern.m)
    V, NV = (_space(pattern, pattern.m, most) for _ in range(2))  # basis, and A^T A basis, one vector a row
    AV = _space(pattern, pattern.n, most)
    V[:, :WIDTH] = start(pattern, pattern.m)
    value = bad = torch.zeros(0)
    for passes in range(1, most + 1):
        old, new = slice(0, passes * WIDTH), slice((passes - 1) * WIDTH, passes * WIDTH)
        AV[:, new] = pattern.centre(pattern.centre(pattern.image(V[:, new])))  # twice: rounding noise has a mean too
        NV[:, new] = pattern.pulled(AV[:, new])  # because Pi_2 A = A
        if passes in (4, 6, 9, 12) or passes == most:
            T, bad = finite((AV[:, old] @ AV[:, old].mT).double())
            squares, Y = torch.linalg.eigh(T)
            y = Y[:, None, :, -1].to(V.dtype)
            v, Av, Nv = ((y @ part[:, old]).double().squeeze(-2) for part in (V, AV, NV))
            value = Av.norm(dim=-1) / v.norm(dim=-1).clamp_min(TINY)  # of v itself: V is orthonormal up to rounding
            residual = (Nv - value.square()[:, None] * v).norm(dim=-1) / value.clamp_min(TINY)
            if passes == most or bool((bad | (residual <= tolerance * value + TINY)).all()):
                break
        V[:, passes * WIDTH : (passes + 1) * WIDTH] = _next(NV[:, new], V[:, old])
    noise = torch.finfo(V.dtype).eps * pattern.size_of_rows()
    R = NV[:, old].double() - T @ V[:, old].double()
    high = _not_missed(squares, Y, R, value.square() + noise.square(), pattern.count().double().squeeze(-1)).sqrt()
    high = torch.minimum(high, pattern.received.amax(-1).sqrt())  # |Pi_2 P|_2^2 <= |P|_2^2 <= |P|_1 |P|_inf
    error = (high - value).clamp_min(0.0) + 4 * noise
    return torch.where(bad, torch.nan, value), torch.where(bad, torch.nan, error)


def _not_missed(theta: Tensor, Y: Tensor, R: Tensor, found: Tensor, m: Tensor) -> Tensor:
    """The largest eigenvalue of N = A^T A that the space may have missed, (size,).

    N u = l u gives (l - T) V u = R u with T = V N V^T = Y theta Y^T and R = V N - T V. So u has on the first vectors,
    which were random, only |E_1^T (l - T)^-1 R|. Where that is less than random vectors have, there is no such l.
    """
    steps = torch.logspace(-5, 8, 66, dtype=torch.float64, device=found.device)
    candidates = found[:, None] * (1 + steps)  # (size, steps)
    Z = Y.mT @ R
    W = (Z @ Z.mT) * (Y[:, :WIDTH].mT @ Y[:, :WIDTH])
    c = 1 / (candidates[..., None] - theta[:, None, :]).clamp_min(TINY)  # (size, steps, j)
    share = (c @ W * c).sum(-1)  # |E_1^T (l - T)^-1 R|_F^2
    possible = (share >= MISSED / m[:, None]) | (candidates <= theta[:, -1:])
    last = (possible * torch.arange(1, len(steps) + 1, device=found.device)).amax(-1)  # the candidate after it is not
    after = candidates.gather(-1, last.clamp_max(len(steps) - 1)[:, None]).squeeze(-1)
    return torch.where(last < len(steps), after, torch.inf)


def spectral_radius(pattern: Pattern, tolerance: float) -> tuple[Tensor, Tensor]:
    """max |lambda(A)| as the space shows it, and how far it may be off, each (size,).

    The space bounds it from above alone, because of |A^k|^(1/k) >= rho(A) and the random start; an eigenvalue that it
    shows may be a pseudo-eigenvalue, so that the lower bound is 0.
    """
    most = _most(pattern.n - 1)
    V, AV = (_space(pattern, pattern.n, most) for _ in range(2))
    V[:, :WIDTH] = start(pattern, pattern.n)
    value = residual = bad = H = torch.zeros(0)
    for passes in range(1, most + 1):
        old, new = slice(0, passes * WIDTH), slice((passes - 1) * WIDTH, passes * WIDTH)
        AV[:, new] = pattern.centre(pattern.image(V[:, new]))
        if passes in (5, 8, 10, 13) or passes == most:
            H, bad = finite((V[:, old] @ AV[:, old].mT).double())
            value, theta, y = dominant(H)
            Y = torch.cat((y.real, y.imag), -1).mT.to(V.dtype)  # (size, 2, j)
            AVy, Vy = (torch.complex(*(Y @ part[:, old]).double().unbind(-2)) for part in (AV, V))
            residual = (AVy - theta[:, None] * Vy).norm(dim=-1)
            if passes == most or bool((bad | (residual <= tolerance * value + TINY)).all()):
                break
        V[:, passes * WIDTH : (passes + 1) * WIDTH] = _next(AV[:, new], V[:, old])
    powers, high = H[..., :WIDTH], torch.ones_like(value)
    chance = (pattern.count().double().squeeze(-1) / MISSED).sqrt()
    for k in range(1, passes):  # A^k V_1 = V H^k E_1
        high = torch.minimum(high, (1.01 * chance * torch.linalg.vector_norm(powers, dim=(-2, -1))) ** (1 / k))
        powers = H @ powers
    error = torch.maximum(value, high - value)
    return torch.where(bad, torch.nan, value), torch.where(bad, torch.nan, error)


SQUARINGS = 8
PLANE = 8  # dimensions in which eigenvalues of nearly one modulus are told apart


def dominant(H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The spectral radius of small dense H (b, k, k), a dominant eigenvalue (b,) each, and its vector (b, k, 1).

    The columns of H^K, K = 2^8 by repeated squaring in float32, span all eigenvectors of nearly the largest modulus; on
    them the eigenvalues of an 8 x 8 matrix in float64 tell. Where more than 8 are that large, the growth of |H^K| does.
    """
    power, log_norm = H.float(), torch.zeros(len(H), dtype=H.dtype, device=H.device)
    for i in range(SQUARINGS + 1):
        norm = torch.linalg.vector_norm(power, dim=(-2, -1)).clamp_min(TINY)
        before, log_norm = log_norm, log_norm + norm.double().log() / 2**i
        power = power / norm[:, None, None]
        if i < SQUARINGS:
            power = power @ power
    width = min(PLANE, H.shape[-1])
    start = torch.randn(H.shape[-1], width, generator=torch.Generator().manual_seed(1)).to(power)
    plane = torch.linalg.qr((power @ start).double()).Q
    eigenvalues, Z = torch.linalg.eig(plane.mT @ H @ plane)
    top = eigenvalues.abs().argmax(-1, keepdim=True)
    z = Z.gather(-1, top[:, None, :].expand(-1, width, 1))
    theta = eigenvalues.gather(-1, top).squeeze(-1)
    radius = (2 * log_norm - before).exp()  # |H^2K| / |H^K| = rho^K: what the norm adds to the power cancels
    radius = torch.where((theta.abs() - radius).abs() <= 0.02 * radius, theta.abs(), radius)  # several of one modulus
    return radius.clamp_max(1.0), theta, plane.to(z.dtype) @ z


def finite(A: Tensor) -> tuple[Tensor, Tensor]:
    """A (b, k, k) with zeros for the matrices that are not finite, and which those are (b,): LAPACK refuses them."""
    bad = ~A.isfinite().all(-1).all(-1)
    return torch.where(bad[:, None, None], 0.0, A), bad


def _most(length: int) -> int:
    """Passes after which the space is as large as it can be."""
    return max(1, min(PASSES, -(-length // WIDTH)))


def _space(pattern: Pattern, length: int, most: int) -> Tensor:
    """Room for all vectors, one a row, so that those found so far are one piece of memory."""
    like = pattern.like
    return torch.empty(pattern.size, most * WIDTH, length, dtype=like.dtype, device=like.device)


def start(pattern: Pattern, length: int) -> Tensor:
    """Orthonormal random rows beside the constant one, (size, WIDTH, length)."""
    V = torch.randn(WIDTH, length, generator=torch.Generator().manual_seed(0)).to(pattern.like)
    if pattern.mask is None or pattern.n != pattern.m:  # the same for all heads
        return torch.linalg.qr((V - V.mean(-1, keepdim=True)).mT).Q.mT.expand(pattern.size, WIDTH, length)
    return torch.linalg.qr(pattern.centre(V.expand(pattern.size, WIDTH, length)).mT).Q.mT


def _next(W: Tensor, Q: Tensor) -> Tensor:
    """The directions of the rows of W (size, WIDTH, length) beside those of Q, orthonormal; zero where it has none."""
    before = W.norm(dim=-1).amax(-1)
    new, R = _orthonormal(W - (W @ Q.mT) @ Q)
    fresh = R > 1e-5 * before[:, None]
    # again, of unit vectors: in a direction that is nearly old the rounding noise has grown as large as they are
    new, R = _orthonormal(new - (new @ Q.mT) @ Q)
    fresh &= R > 0.5
    return torch.where(fresh[..., None], new, 0.0)


def _orthonormal(W: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows that span those of W, and how much of each row is beside the ones before it."""
    Q, R = torch.linalg.qr(W.mT)
    return Q.mT, R.diagonal(dim1=-2, dim2=-1).abs()
