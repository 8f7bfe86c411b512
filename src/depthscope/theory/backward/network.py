"""A feed-forward network with random weights, on the way forward and on the way back."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.theory.backward.states import Gradient, Tokens, e_after, joined
from depthscope.theory.kernels import activation_of, hermite_coefficients


class Kappa(NamedTuple):
    """kappa(rho) = E f(u) f(v) / E f(u)^2 of hidden units, where tokens have the correlation rho."""

    lost: float  # 1 - kappa(rho), without rounding where tokens are alike
    first: float  # kappa'(rho)
    second: float  # kappa''(rho)
    own: float  # kappa'(1)


OPPOSITE = 0.1  # sin t of tokens so nearly opposite that no expansion in their overlap holds

Kernel = Callable[[float], Kappa]  # of 1 - rho


def kernel_of(activation: str, spread: float = 1.0) -> Kernel:
    """kappa and its derivatives as a function of 1 - rho; spread: standard deviation of what the activation reads.

    kappa(rho) = sum_k c_k rho^k,  c_k = a_k^2 / sum_j a_j^2,  a_k = Hermite coefficients of f(spread g)

    ReLU has it in closed form, whatever the spread. SwiGLU multiplies silu by a linear unit: rho kappa_silu(rho).
    """
    if activation == "relu":
        return relu
    a = hermite_coefficients(
        activation_of(activation.replace("swiglu", "silu")), torch.tensor(spread, dtype=torch.float64)
    )
    c = torch.cat([torch.zeros(int(activation == "swiglu"), dtype=torch.float64), a.square() / a.square().sum()])
    return lambda gap: by_series(c, gap)


def relu(gap: float) -> Kappa:
    """kappa = (sin t + (pi - t) cos t) / pi,  kappa' = 1 - t / pi,  cos t = rho = 1 - gap.    Cho & Saul 2009"""
    t = 2 * math.asin(math.sqrt(min(gap, 2.0) / 2))
    bent = t**3 / 3 if t < 1e-3 else math.sin(t) - t * math.cos(t)
    steep = max(math.sin(t), OPPOSITE if gap > 1 else 1e-300)
    return Kappa(gap - bent / math.pi, 1 - t / math.pi, 1 / (math.pi * steep), 1.0)


def by_series(c: Tensor, gap: float) -> Kappa:
    """The same from the coefficients c (m,) of kappa's power series."""
    k, rho = torch.arange(len(c), dtype=torch.float64), 1 - gap
    lost = -(c * torch.expm1(k * math.log1p(-gap))).sum() if 0 <= gap < 1 else 1 - (c * rho**k).sum()
    first = (c[1:] * k[1:] * rho ** k[:-1]).sum()
    second = (c[2:] * (k * (k - 1))[2:] * rho ** k[:-2]).sum()
    return Kappa(float(lost), float(first), float(second), float((c * k).sum()))


@dataclass(frozen=True)
class Network:
    """The branch that reads tokens X of unit length; k is the energy it makes of one unit."""

    X: Tokens
    k: float
    kappa: Kappa
    n: int
    d: int
    width: int

    @property
    def slope(self) -> float:
        """Overlap in the branch for one unit of overlap in X."""
        return self.k * self.kappa.first

    def forward(self, stream: Tokens, read: float) -> Tokens:
        """The stream after the branch, which read it divided by sqrt(read).

        q += k,    D += k (1 - kappa(rho) - kappa''(rho) e / 2)
        """
        energy = self.k * self.kappa.lost
        noise = 2 * stream.D * energy / self.d + energy**2 * (1 / self.d + 1 / self.width)
        e = e_after(stream, energy, self.slope / read, noise)
        D = max(energy - self.k * self.kappa.second * self.X.e / 2, 0.0)
        return joined(stream, self.k, D, e, n=self.n, d=self.d)

    def backward(self, g: Gradient) -> Gradient:
        """T: k kappa'(1) T,    S: k (kappa'(rho) S + (kappa'(1) - kappa'(rho)) T / n),    R: k kappa'(rho) R"""
        own, first = self.kappa.own, self.kappa.first
        return Gradient(own * g.T, first * g.S + (own - first) * g.T / self.n, first * g.R).times(self.k)
