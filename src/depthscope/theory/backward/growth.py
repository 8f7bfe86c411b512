"""Growth of the token gradient from block to block, towards the input, typical for random weights.

Independent weights of mean zero kill all cross terms between the stream, values, queries, keys and the network, so that
energies add: of tokens on the way forward (q, D, eta), of gradients on the way back (T, S, R); see states.py.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from depthscope.errors import UnknownNameError, UsageError
from depthscope.junctions import PRE_NORM, Declaration, Junction, Junctions, declared
from depthscope.registry import unknown
from depthscope.theory.backward.block import Passed, StackSizes, backward, forward
from depthscope.theory.backward.network import kernel_of
from depthscope.theory.backward.states import COLLAPSED, Gradient, Tokens
from depthscope.theory.matrix_gains import MatrixGains
from depthscope.theory.numbers import Number, Result, as_tensors, checked, plain

ACTIVATIONS = ("relu", "gelu", "silu", "swiglu", "identity")


def gradient_growth(
    depth: int,
    *,
    n: int,
    d: int,
    h: int,
    width: int,
    s: Number,
    v: Number,
    k: Number,
    tau: float = 0.0,
    wiring: str = "post_norm",
    junctions: Declaration | None = None,
    activation: str = "relu",
    spread: float = 1.0,
    rho: float = 0.0,
    common: float | None = None,
) -> Tensor:
    """|dL/dX_{l-1}| / |dL/dX_l| for every block l = 1 ... depth of a stack with random weights -> (depth,).

    X_l are the n tokens after block l and its de-escalation X <- X - tau mean(X). Above 1 gradients explode.
    s = alpha^2 d Var(W_V) d Var(W_O), v = d Var(W_q) d Var(W_k), the variance of the scores of unit tokens, and
    k = E |FFN(x)|^2 / |x|^2 are numbers, or (depth,) where blocks differ. width is that of the network; spread =
    sqrt(d Var(W_1)), of which ReLU knows nothing. junctions(depth, index) describes a block; left out, those of the
    wiring are taken. Their factors and gains come on top of s, v, k and spread. rho: mean correlation of two tokens of
    unit variance at the bottom. common: the share of dL/dX_depth that all tokens have in common: 1/n (None) for a loss
    on one token or on each for itself, 1 for a loss on the mean token.

    Good to 0.02 for v <= 4 where post-norm's tau is off 1 - 1 / sqrt(1 + s) by 0.1; too small for v > 9 at d < 64. Too
    large, by up to 0.05, for v = 4 with one head and fewer than 16 tokens: there chance makes the typical growth of one
    sequence smaller than that of the mean energy, and only the common part is corrected for it; and for two or three
    tokens, by up to 0.07. Blocks at the very ends may be off by 0.04, their mean over the middle is not.
    Not covered: causal masks, biases, other junctions than those of post-norm and pre-norm, trained weights.

    Examples:
        >>> ds.theory.gradient_growth(4, n=64, d=256, h=8, width=32, s=1.0, v=1.0, k=1.0, tau=1.0).shape
        torch.Size([4])
    """
    declare = declared(wiring) if junctions is None else junctions
    if activation not in ACTIVATIONS:
        raise UnknownNameError("gradient_growth: " + unknown("activation", activation, ACTIVATIONS))
    _check_sizes(depth=depth, n=n, d=d, h=h, width=width)
    share = 1 / n if common is None else common
    tau, spread, rho, share = checked("gradient_growth", tau=tau, spread=spread, rho=rho, common=share)
    if tau == 1 and share == 1:
        raise UsageError(
            "gradient_growth: a loss must see more than the mean token when tau = 1, which removes it; got common = 1, "
            "whose gradient is exactly zero. Read one token (common = 1/n), or take tau below 1."
        )
    if tau == 1 and rho == 1:
        raise UsageError(
            "gradient_growth: tokens must differ when tau = 1, which leaves nothing of equal ones; got rho = 1. "
            "Start with rho below 1, or take tau below 1."
        )
    if not reaches(declare, depth):
        raise UsageError(
            "gradient_growth: blocks must have norms before their branches, or after their sums, and nowhere else; "
            "these have not. The growth of other blocks is not known: measure it, ds.scan(model, inputs, gradients=)."
        )
    blocks = [declare(depth, index) for index in range(1, depth + 1)]
    gains = [
        MatrixGains(*each, hidden_variance=spread**2).times(block.gains, activation)
        for each, block in zip(_of_each_block(depth, s=s, v=v, k=k), blocks, strict=True)
    ]
    sizes = StackSizes(n, d, h, width, kernel_of(activation, gains[0].hidden_variance ** 0.5), tau)
    passed = _upwards(sizes, rho, blocks, gains)
    g, factors = Gradient(1.0, share, 0.0), []
    for block in reversed(passed):
        g = backward(sizes, block, g)
        factors.append(math.sqrt(g.T))
        g = g.times(1 / g.T)
    return torch.tensor(factors[::-1], dtype=torch.float64)


def growth_of_diverse_tokens(
    n: Number, *, s: Number, v: Number, k: Number, tau: Number = 1.0, kappa_0: Number = 1 / math.pi
) -> Result:
    """The same in closed form, for post-norm and tokens that de-escalation keeps diverse.

    g^2 = (1 + 2 s w / n) / (1 - mu),    mu = k kappa(0) / (1 + k) (2 tau - tau^2),    w = v (1 - mu)^2

    numbers or (...) -> the same. De-escalation removes the network's common part mu, and the next norm scales up what
    is left; queries and keys add s w / n each. Leading order in 1/n, 1/d and w: holds for v <= 1 and tau >= 1/2, well
    above 1 - 1 / sqrt(1 + s), within about 0.025. Letters as for gradient_growth; kappa_0 is the activation's kappa(0).

    Examples:
        >>> round(float(ds.theory.growth_of_diverse_tokens(64, s=1.0, v=1.0, k=1.0)), 3)
        1.103
    """
    given = checked("growth_of_diverse_tokens", n=n, s=s, v=v, k=k, tau=tau, kappa_0=kappa_0)
    n_, s_, v_, k_, tau_, kappa_ = as_tensors(*given)
    mu = k_ * kappa_ / (1 + k_) * (2 * tau_ - tau_**2)
    w = v_ * (1 - mu) ** 2
    return plain(((1 + 2 * s_ * w / n_) / (1 - mu)).sqrt(), *given)


def reaches(junctions: Declaration, depth: int) -> bool:
    """Whether the theory covers blocks: post-norm, pre-norm, and branches that write nothing."""
    blocks = [junctions(depth, index) for index in range(1, depth + 1)]
    return all(
        not block.side_stream and all(_is_covered(junction) for junction in (block.attention, block.network))
        for block in blocks
    )


def _is_covered(junction: Junction) -> bool:
    plain = replace(junction, write=1.0, skip=1.0, normed_read=False, normed_sum=False) == Junction()
    if junction.normed_sum:
        return plain and not junction.normed_read
    return plain and junction.skip == 1 and (junction.normed_read or not junction.write)


def _upwards(sizes: StackSizes, rho: float, blocks: list[Junctions], gains: list[MatrixGains]) -> list[list[Passed]]:
    """Tokens from the bottom to the top; the blocks they went through.

    A heavier skip means a lighter branch, as the norm behind the sum divides both.
    """
    X, passed = Tokens(1.0, max(1 - rho, COLLAPSED), 1 / sizes.d), []
    for block, gain in zip(blocks, gains, strict=True):
        both = block.attention, block.network
        s, k = (energy * (j.write / j.skip) ** 2 for energy, j in zip((gain.s_A, gain.k), both, strict=True))
        attention, network = (j if j.write else PRE_NORM.network for j in both)  # a silent branch may read anything
        X, found = forward(sizes, Junctions(attention, network), X, s, gain.score_variance, k)
        passed.append(found)
    return passed


def _of_each_block(depth: int, **gains: Number) -> list[tuple[float, float, float]]:
    values = checked("gradient_growth", **gains)
    for name, value in zip(gains, values, strict=True):
        if isinstance(value, Tensor) and tuple(value.shape) not in ((), (depth,)):
            raise UsageError(
                f"gradient_growth: {name} must be a number or one for each of {depth} blocks; got "
                f"{tuple(value.shape)}. Give a tensor ({depth},)."
            )
    rows = [torch.as_tensor(value, dtype=torch.float64).expand(depth) for value in values]
    return [(float(s), float(v), float(k)) for s, v, k in zip(*rows, strict=True)]


def _check_sizes(*, h: int, d: int, n: int, **sizes: int) -> None:
    for name, size in {"n": n, "d": d, "h": h, **sizes}.items():
        least = 2 if name in ("n", "d") else 1
        if not isinstance(size, int) or isinstance(size, bool) or size < least:
            raise UsageError(f"gradient_growth: {name} must be a whole number, {least} or more; got {size!r}.")
    if d % h:
        raise UsageError(f"gradient_growth: heads must divide the width; got d = {d} and h = {h}. Try h = 1.")
