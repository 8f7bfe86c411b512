"""Kernels of activations: how alike the hidden units of a feed-forward network are, for tokens that are so alike."""

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope._registry import unknown
from depthscope.errors import UnknownNameError

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
    scale = sigma.unsqueeze(-1) * sigma.unsqueeze(-2)
    return sigma, torch.where(scale > 0, C / scale.clamp(min=1e-300), 0.0).clamp(-1, 1)


def hermite_coefficients(f: Callable[[Tensor], Tensor], sigma: Tensor, mean: Tensor | float = 0.0) -> Tensor:
    """a_k = E f(mean + sigma g) He_k(g) / sqrt(k!) for k = 0 ... DEGREE, g standard normal.

    sigma, mean (...) -> (..., DEGREE + 1). Then E f(u) f(v) = sum_k a_k b_k rho^k for u, v with correlation rho.
    """
    g, w = gauss_hermite()
    return (f(torch.as_tensor(mean).unsqueeze(-1) + sigma.double().unsqueeze(-1) * g) * w) @ _hermite()


def series(coefficients: Tensor, rho: Tensor) -> Tensor:
    """sum_k c_k rho^k by Horner's rule, coefficients (..., DEGREE + 1) against rho (...)."""
    total = torch.zeros_like(rho)
    for c in reversed(coefficients.unbind(-1)):
        total = total * rho + c
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
