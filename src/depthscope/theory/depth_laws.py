"""How token similarity goes with depth, wiring by wiring, in closed form: what the maps of two numbers come to.

All laws are for uniform attention without a mask. rho is the cosine of two tokens; near collapse ReLU networks keep
1 - rho, because their kernel has slope kappa'(1) = 1. For post-norm the law is block_gain of depth.py: odds grow by
1 + alpha^2 s_A in every block. Put alpha^2 s_A for s_A where the attention branch has a weight alpha.
"""

import torch

from depthscope.theory.kernels import activation_of
from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain

_GRID = torch.linspace(-9.0, 9.0, 20_001, dtype=torch.float64)  # of a standard normal: fine enough for a steep tanh


def kernel_slope(activation: str, *, hidden_variance: Number = 1.0) -> Result:
    """How much further apart a network moves nearly equal tokens than it makes them larger.

    kappa'(1) = v E f'(u)^2 / E f(u)^2,    u normal of variance v = hidden_variance

    hidden_variance = d Var(W_1) (...) -> (...). 1 for ReLU, whatever the variance; above 1 the network alone keeps
    tokens apart near collapse, below 1 it makes them alike. swiglu: 1 + that of silu.

    Examples:
        >>> round(float(ds.theory.kernel_slope("relu")), 3), round(float(ds.theory.kernel_slope("gelu")), 3)
        (1.0, 1.072)
    """
    (hidden_variance,) = checked("kernel_slope", hidden_variance=hidden_variance)
    if activation == "relu":  # whose series converges too slowly for its derivative
        return plain(torch.ones_like(as_tensors(hidden_variance)[0]), hidden_variance)
    gated = activation == "swiglu"
    (v,) = as_tensors(hidden_variance)
    f = activation_of("silu" if gated else activation)
    u = (v.sqrt().unsqueeze(-1) * _GRID).requires_grad_()
    with torch.enable_grad():
        value = f(u)
        (slope,) = torch.autograd.grad(value.sum(), u)
    weight = (-_GRID.square() / 2).exp()
    own = v * (weight * slope.square()).sum(-1) / (weight * value.detach().square()).sum(-1)
    return plain(own + float(gated), hidden_variance)


def pre_norm_exponent(s_A: Number, k: Number, *, slope: Number = 1.0) -> Result:
    """The power of depth by which tokens grow alike in a pre-norm model.

    1 - rho ~ L^-e,    e = 1 - slope k / (s_A + k)  =  s_A / (s_A + k) for ReLU

    s_A, k, slope (...) -> (...). The energy grows as L (s_A + k), and what differs as dD/dL = slope k D / q. Holds near
    collapse; below 0 the network wins and the tokens do not collapse. 1 without a network. NaN where s_A = k = 0.

    Examples:
        >>> float(ds.theory.pre_norm_exponent(s_A=1.0, k=1.0))
        0.5
    """
    s_A, k, slope = checked("pre_norm_exponent", s_A=s_A, k=k, slope=slope)
    s, network, kappa = as_tensors(s_A, k, slope)
    return plain((s + (1 - kappa) * network) / (s + network), s_A, k, slope)


def pre_norm_decay(depth: Number, *, s_A: Number, k: Number, q: Number = 1.0) -> Result:
    """What `depth` blocks of a pre-norm model leave of 1 - rho, exactly, near collapse and for ReLU.

    prod_l q_l / (q_l + s_A) = Gamma(b) Gamma(a + L) / (Gamma(a) Gamma(b + L)),    q_l = q + l (s_A + k),
    a = q / (s_A + k),  b = (q + s_A) / (s_A + k)

    depth, s_A, k, q (...) -> (...), in (0, 1]; q is the energy of the tokens before the first block. For large depth
    this is the power law of pre_norm_exponent. 1 where s_A = k = 0.

    Examples:
        >>> round(float(ds.theory.pre_norm_decay(12, s_A=1.0, k=1.0)), 3)  # of 12 blocks
        0.161
    """
    depth, s_A, k, q = checked("pre_norm_decay", depth=depth, s_A=s_A, k=k, q=q)
    L, s, network, energy = as_tensors(depth, s_A, k, q)
    step = (s + network).clamp(min=1e-12)
    a, b = energy / step, (energy + s) / step
    logs = torch.lgamma(b) - torch.lgamma(a) + torch.lgamma(a + L) - torch.lgamma(b + L)
    middle = (a + b) / 2  # Gamma functions of large numbers cancel: there their ratio is a difference of digammas
    logs = torch.where(a > 1e3, (a - b) * (torch.digamma(middle + L) - torch.digamma(middle)), logs)
    return plain(torch.where(s > 0, logs.exp(), 1.0), depth, s_A, k, q)


def layer_norm_scaling_decay(depth: Number, *, s_A: Number, k: Number, q: Number = 1.0) -> Result:
    """What `depth` blocks with LayerNorm scaling leave of 1 - rho: a power of the logarithm of depth.

    (q / q_L)^{s_A / (s_A + k)},    q_L = q + (s_A + k) H_L,  H_L = 1 + 1/2 + ... + 1/L ~ log L

    depth, s_A, k, q (...) -> (...), in (0, 1]. Branches of block l weigh 1/l, so that pre-norm's law holds with H_L for
    L. Near collapse, for ReLU and s_A well below q: steps are taken as small. Sun et al. 2025 (2502.05795).

    Examples:
        >>> round(float(ds.theory.layer_norm_scaling_decay(12, s_A=1.0, k=1.0)), 3)  # of 12 blocks
        0.373
    """
    depth, s_A, k, q = checked("layer_norm_scaling_decay", depth=depth, s_A=s_A, k=k, q=q)
    L, s, network, energy = as_tensors(depth, s_A, k, q)
    harmonic = torch.digamma(L + 1) - torch.digamma(torch.ones_like(L))
    left = (1 + (s + network) * harmonic / energy) ** (-s / (s + network).clamp(min=1e-300))
    return plain(left, depth, s_A, k, q)


def deep_norm_growth(depth: Number, *, s_A: Number = 1.0) -> Result:
    """What all blocks of a DeepNorm model together multiply the odds t_sim / t_div by at the start.

    (1 + s_A beta^4 / alpha_N^2)^L  ~  1 + s_A / (8 sqrt(2 L)),    alpha_N = (2L)^(1/4),  beta = (8L)^(-1/4)

    depth L, s_A (...) -> (...), above 1 and falling to 1: the deeper, the less tokens grow alike. The network, whose
    part goes like 1 / sqrt(L) as well, is left out. s_A = 1 for Xavier's law. Wang et al. 2022 (2203.00555).

    Examples:
        >>> round(float(ds.theory.deep_norm_growth(48)), 3)
        1.013
    """
    depth, s_A = checked("deep_norm_growth", depth=depth, s_A=s_A)
    L, s = as_tensors(depth, s_A)
    each = s / (8 * L * (2 * L).sqrt())
    return plain(torch.where(L > 0, (L * each.log1p()).exp(), 1.0), depth, s_A)


def depth_scaled_growth(c: Number, *, depth: Number | None = None, s_A: Number = 1.0) -> Result:
    """What all blocks multiply the odds t_sim / t_div by when attention is weighed by c / sqrt(depth).

    (1 + c^2 s_A / L)^L  ->  e^{c^2 s_A}

    c, depth L, s_A (...) -> (...), >= 1: bounded at any depth; depth left out gives the limit. Holds where the network
    adds nothing, near collapse with ReLU; elsewhere it adds to it. Noci et al. 2022 (2206.03126).

    Examples:
        >>> round(float(ds.theory.depth_scaled_growth(1.0, depth=48)), 3)
        2.69
    """
    c, s_A = checked("depth_scaled_growth", c=c, s_A=s_A)
    if depth is None:
        weight, s = as_tensors(c, s_A)
        return plain((weight**2 * s).exp(), c, s_A)
    (depth,) = checked("depth_scaled_growth", depth=depth)
    weight, s, L = as_tensors(c, s_A, depth)
    return plain((L * (weight**2 * s / L.clamp(min=1e-300)).log1p()).exp(), c, s_A, depth)
