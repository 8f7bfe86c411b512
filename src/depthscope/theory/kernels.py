"""Kernels of activations: how alike the hidden units of a feed-forward network are, for tokens that are so alike."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.errors import UnknownNameError
from depthscope.registry import unknown

TOGETHER = 2048  # entries whose 128 values are in memory together: they stay in the cache
DEGREE = 60  # of the series in rho; its error is the energy of f beyond that degree

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def kernel(activation: str, C: Tensor) -> Tensor:
    """K_ij = E f(u_i) f(u_j) for Gaussian u with covariance C and mean zero.

    K_ij = sum_k a_k(i) a_k(j) rho_ij^k,    rho = correlations of C;  Mehler's series, see hermite_coefficients

    C (..., n, n) -> K (..., n, n). For ReLU the arc-cosine kernel in closed form (Cho & Saul 2009).

    Examples:
        >>> ds.theory.kernel("relu", torch.eye(2))  # (2, 2): ReLU gives two orthogonal tokens something in common
        tensor([[0.5000, 0.1592],
                [0.1592, 0.5000]], dtype=torch.float64)
    """
    f = activation_of(activation)
    C = C.double()
    sigma, rho = deviations(C)
    if activation == "relu":
        scale = sigma.unsqueeze(-1) * sigma.unsqueeze(-2)
        return scale * ((1 - rho**2).sqrt() + rho * (math.pi - rho.arccos())) / (2 * math.pi)
    a = hermite_coefficients(f, sigma)
    return series(a.unsqueeze(-2) * a.unsqueeze(-3), rho)


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """The function called `name`, or an error that offers the nearest names."""
    if name not in ACTIVATIONS:
        raise UnknownNameError("kernel: " + unknown("activation", name, ACTIVATIONS))
    return ACTIVATIONS[name]


def deviations(C: Tensor) -> tuple[Tensor, Tensor]:
    """Standard deviations (..., n) and correlations (..., n, n) of a covariance; 0 where there is no variance."""
    sigma = C.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    inverse = torch.where(sigma > 0, 1 / sigma.clamp(min=1e-150), 0.0)
    return sigma, (C * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)).clamp_(-1, 1)


def hermite_coefficients(f: Callable[[Tensor], Tensor], sigma: Tensor, mean: Tensor | float = 0.0) -> Tensor:
    """a_k = E f(mean + sigma g) He_k(g) / sqrt(k!) for k = 0 ... DEGREE, g standard normal.

    sigma, mean (...) -> (..., DEGREE + 1). Then E f(u) f(v) = sum_k a_k b_k rho^k for u, v with correlation rho.
    """
    g, w = gauss_hermite()
    centre, sigma = torch.broadcast_tensors(torch.as_tensor(mean), sigma.double())
    parts = zip(centre.flatten().split(TOGETHER), sigma.flatten().split(TOGETHER), strict=True)
    found = [(f(m.unsqueeze(-1) + s.unsqueeze(-1) * g) * w) @ _hermite() for m, s in parts]
    return (found[0] if len(found) == 1 else torch.cat(found)).reshape(*sigma.shape, -1)


def series(coefficients: Tensor, rho: Tensor) -> Tensor:
    """sum_k c_k rho^k, coefficients (..., DEGREE + 1) against rho (...), |rho| <= 1.

    Even and odd powers apart, each by Horner's rule in rho^2: ReLU and GELU have no odd power but the first.
    """
    sizes = coefficients.abs().reshape(-1, coefficients.shape[-1]).amax(0)
    least, square = 1e-13 * float(sizes.sum()), rho * rho
    even, odd = (_horner(coefficients[..., i::2], square, _degrees(sizes[i::2], least)) for i in (0, 1))
    return torch.addcmul(even, odd, rho)


def _degrees(sizes: Tensor, least: float) -> int:
    """How many coefficients to keep, so that those beyond come to less than `least` for |rho| <= 1."""
    return max(1, int((sizes.flip(0).cumsum(0) > least).sum()))


def _horner(coefficients: Tensor, x: Tensor, keep: int) -> Tensor:
    total, *lower = reversed(coefficients[..., :keep].unbind(-1))
    for c in lower:
        total = torch.addcmul(c, total, x)
    return total


@lru_cache
def gauss_hermite(points: int = 128) -> tuple[Tensor, Tensor]:
    """Points and weights with sum_i w_i f(g_i) = E f(g), g standard normal.

    Points are eigenvalues of Jacobi's matrix; weights are Christoffel's 1 / sum_k h_k(g_i)^2, which keep their relative
    precision where eigenvectors do not.
    """
    off = torch.arange(1, points, dtype=torch.float64).sqrt()
    g = torch.linalg.eigvalsh(torch.diag(off, 1) + torch.diag(off, -1))
    return g, 1 / _polynomials(g, points - 1).square().sum(-1)


@lru_cache
def _hermite() -> Tensor:
    return _polynomials(gauss_hermite()[0], DEGREE)


def _polynomials(g: Tensor, degree: int) -> Tensor:
    """h_k(g) = He_k(g) / sqrt(k!) for k up to degree, (m,) -> (m, degree + 1), by the three-term recursion."""
    columns = [torch.ones_like(g), g]
    for k in range(1, degree):
        columns.append((g * columns[-1] - math.sqrt(k) * columns[-2]) / math.sqrt(k + 1))
    return torch.stack(columns, -1)
