"""How token gradients grow from block to block of a design that is never built."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.models.design import Design
from depthscope.models.weights import _Unfilled as Drawn
from depthscope.models.wirings.wiring import Wiring
from depthscope.registry import lookup
from depthscope.theory.backward import gradient_growth
from depthscope.theory.kernels import kernel

Scales = Callable[[Any], tuple[float, float]]  # a block's wiring -> factors on attention and network

# Factors beside a skip of 1: DeepNorm's heavier skip means lighter branches, as the norm behind the sum divides both.
WIRINGS: dict[str, tuple[str, Scales]] = {
    "post_norm": ("post_norm", lambda w: (1.0, 1.0)),
    "admin": ("post_norm", lambda w: (1.0, 1.0)),  # before its profile is taken
    "deep_norm": ("post_norm", lambda w: (1 / w.alpha_N, 1 / w.alpha_N)),
    "depth_scaled": ("post_norm", lambda w: (w.scale, w.scale)),
    "pre_norm": ("pre_norm", lambda w: (1.0, 1.0)),
    "layer_scale": ("pre_norm", lambda w: (w.g_1[0].item(), w.g_2[0].item())),
    "skip_init": ("pre_norm", lambda w: (w.a_1.item(), w.a_2.item())),
    "rezero": ("pre_norm", lambda w: (w.a.item(), w.a.item())),
}


class Gains(NamedTuple):
    """What gradient_growth wants to know of the weights: (depth,) each, and the spread of what the activation reads."""

    s: Tensor
    v: Tensor
    k: Tensor
    spread: float


def growth_of_design(design: Design, n: int, *, t_sim: float, tau: float = 0.0, scores: float = 1.0) -> Tensor | None:
    """|dL/dX_{l-1}| / |dL/dX_l| of every block for n tokens that start alike by t_sim, (depth,); tau de-escalates.

    scores multiplies what the softmax reads, as sqrt(scores) on both W_q and W_k does. The loss reads one token, or
    every token for itself. None where the theory does not reach: causal attention, other formulas than softmax and
    uniform, biases, wirings that are not in WIRINGS, a single token, equal tokens without their mean.
    """
    if not is_reached(design) or n < 2 or tau == t_sim == 1:
        return None
    s, v, k, spread = gains_of_design(design)
    return gradient_growth(
        design.depth,
        n=n,
        d=design.d,
        h=design.h,
        width=design.ffn_width,
        s=s,
        v=v * scores**2,
        k=k,
        tau=tau,
        wiring=WIRINGS[design.wiring][0],
        activation=design.activation,
        spread=spread,
        rho=(n * t_sim - 1) / (n - 1),
    )


def is_reached(design: Design) -> bool:
    """Whether the theory of gradients covers a design."""
    plain = design.attention in ("softmax", "uniform") and not design.causal and not design.bias
    return plain and design.wiring in WIRINGS


def gains_of_design(design: Design) -> Gains:
    """The gains of every block, from the variances that the weight law gives."""
    wiring = lookup("wiring", design.wiring)
    rows = [_gains(design, wiring(design, index)) for index in range(1, design.depth + 1)]
    s, v, k = torch.tensor(rows, dtype=torch.float64).T
    return Gains(s, v, k, _gain(design, wiring(design, 1), _activated(design)) ** 0.5)


def _gains(design: Design, wiring: Wiring) -> tuple[float, float, float]:
    attention, network = WIRINGS[design.wiring][1](wiring)
    W, W_O, W_q, W_k, W_1, W_2, read = (
        _gain(design, wiring, role) for role in ("W", "W_O", "W_q", "W_k", "W_1", "W_2", _activated(design))
    )
    s = (design.alpha * attention) ** 2 * W * (W_O if design.output else 1.0)
    v = W_q * W_k if design.attention == "softmax" else 0.0
    hidden = _energy("silu", read) * W_1 if design.activation == "swiglu" else _energy(design.activation, read)
    return s, v, network**2 * hidden * W_2


def _activated(design: Design) -> str:
    """The matrix whose products the activation reads."""
    return "W_gate" if design.activation == "swiglu" else "W_1"


def _energy(activation: str, variance: float) -> float:
    """E f(u)^2 for u of this variance."""
    return float(kernel(activation, torch.tensor([[variance]], dtype=torch.float64)))


def _gain(design: Design, wiring: Wiring, role: str) -> float:
    """fan_in Var(W): the energy that a matrix makes of one unit."""
    d, q = design.d, design.ffn_width
    fan_out, fan_in = {"W_1": (q, d), "W_gate": (q, d), "W_2": (d, q)}.get(role, (d, d))
    weight = Drawn(fan_out, fan_in)
    lookup("weight law", design.weights)(weight, None, role, design.h)
    return fan_in * weight.variance * wiring.gain(role) ** 2
