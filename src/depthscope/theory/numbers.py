"""Numbers or tensors in, the same kind out; the range of every letter is written in one table."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depthscope.errors import UsageError

Number = float | Tensor
Result = Any  # a float when every argument is a number, and a float64 tensor otherwise


class _Range(NamedTuple):
    low: float
    high: float
    hint: str
    ends: str = "[]"  # which ends belong to the range
    measured: bool = False  # a measured letter may be NaN (and stays it), and may miss its range by rounding


_SLACK = 1e-6  # the rounding that a measured letter is forgiven
_RANGES = {
    "alpha": _Range(0, math.inf, "It weighs the attention branch against the residual; 1 is the paper's.", "()"),
    "sigma": _Range(0, math.inf, "It is the standard deviation of the weights; leave it out for 1 / sqrt(d).", "[)"),
    "d": _Range(1, math.inf, "It is the width of a token.", "[)"),
    "gain": _Range(0, math.inf, "It is what one block multiplies the odds t_sim / t_div by, xi_1 / xi_2.", "[)"),
    "depth": _Range(0, math.inf, "It counts blocks.", "[)"),
    "n": _Range(1, math.inf, "It counts tokens.", "[)"),
    "variance": _Range(0, math.inf, "It is the variance of attention's scores.", "[)"),
    "s_A": _Range(0, math.inf, "It is d Var(W_V) d Var(W_O); 0 switches attention off.", "[)"),
    "s_O": _Range(0, math.inf, "It is d Var(W_O), or 1 where there is no W_O.", "[)"),
    "s_2": _Range(0, math.inf, "It is q Var(W_2) with q hidden units.", "[)"),
    "c": _Range(0, math.inf, "It is the weight of the attention branch before it is divided by sqrt(depth).", "[)"),
    "slope": _Range(0, math.inf, "It is kappa'(1) of the activation; 1 for ReLU: kernel_slope.", "[)"),
    "score_variance": _Range(0, math.inf, "It is d Var(W_q) d Var(W_k); 0 for uniform attention.", "[)"),
    "hidden_variance": _Range(0, math.inf, "It is d Var(W_1), or 1 where only ReLU follows.", "()"),
    "b_A": _Range(0, math.inf, "It is the variance of the bias that ends attention.", "[)"),
    "b_F": _Range(0, math.inf, "It is the variance of the bias that ends the network.", "[)"),
    "q": _Range(0, math.inf, "It is the energy of a token, per channel; 1 after a norm.", "()"),
    "scores": _Range(0, math.inf, "It is a factor on what the softmax reads; 1 leaves it.", "[)"),
    "tau": _Range(0, 1, "1 removes the mean token, 0 does nothing."),
    "s": _Range(0, math.inf, "It is the gain of the attention branch, alpha^2 d Var(W_V) d Var(W_O).", "[)"),
    "v": _Range(0, math.inf, "It is the variance of the scores of unit tokens, d Var(W_q) d Var(W_k).", "[)"),
    "k": _Range(0, math.inf, "It is the energy that the feed-forward network makes of one unit.", "[)"),
    "kappa_0": _Range(0, 1, "It is the correlation of hidden units of uncorrelated tokens; 1 / pi for ReLU."),
    "spread": _Range(0, math.inf, "It is the standard deviation of what the activation reads, sqrt(d Var(W_1)).", "()"),
    "rho": _Range(-1, 1, "It is the mean correlation of two tokens."),
    "common": _Range(0, 1, "It is the share of the gradient that all tokens have in common; 1/n for one token."),
    "residual": _Range(0, math.inf, "It is |res(X)|_{1,inf}: ds.metrics.composite_norm of the centred tokens.", "[)"),
    "beta": _Range(0, math.inf, "It is |W_QK|_1 |W_V W_O|_{1,inf} of a head.", "[)"),
    "d_qk": _Range(1, math.inf, "It is the width of a head's queries.", "[)"),
    "heads": _Range(1, math.inf, "It counts heads.", "[)"),
    "gamma": _Range(0, math.inf, "It is the paper's gamma; 1 is enough.", "()"),
    "lipschitz": _Range(0, math.inf, "It is the Lipschitz constant of the feed-forward network.", "[]"),
    "a": _Range(0, math.inf, "It comes from head_norms.", "[)"),
    "b": _Range(0, math.inf, "It comes from head_norms.", "[)"),
    "D": _Range(0, math.inf, "It is D: ds.theory.score_spread(E).", "[]"),
    "threshold": _Range(0, 1, "It is the t_sim that counts as collapsed; 0.99 when left out.", "()"),
    "t_sim": _Range(0, 1, "It is a share of the energy: ds.metrics.t_sim(X).", measured=True),
    "lambda_2": _Range(0, 1, "It is a modulus: ds.metrics.lambda_2(P).", measured=True),
    "mu": _Range(0, math.inf, "It is a ratio of norms: ds.metrics.mu(X, P).", measured=True),
    "mu_1": _Range(0, math.inf, "It is a ratio of norms: ds.metrics.mu(X, P).", measured=True),
    "mu_2": _Range(0, math.inf, "It is a ratio of norms: ds.metrics.mu(X, P).", measured=True),
    "omega": _Range(0, math.inf, "It is a ratio of norms: ds.metrics.omega(X, P).", measured=True),
    "delta": _Range(0, math.inf, "It is a norm: ds.metrics.delta(P).", measured=True),
    "energy": _Range(0, math.inf, "It is a squared Frobenius norm.", measured=True),
    "mixed_energy": _Range(0, math.inf, "It is a squared Frobenius norm.", measured=True),
    "eta": _Range(-math.inf, math.inf, "It is E[eta] of eq. (14): ds.theory.expected_eta(X, P).", measured=True),
}


def checked(where: str, **values: Number) -> list[Result]:
    """The values as floats or float64 tensors, each inside the range of its letter; UsageError otherwise."""
    return [_checked(where, name, value) for name, value in values.items()]


def _checked(where: str, name: str, value: Number) -> Result:
    if not isinstance(value, Tensor | int | float):
        raise UsageError(
            f"{where}: {name} must be a number or a tensor; got {type(value).__name__}. Wrap it in torch.as_tensor."
        )
    low, high, hint, ends, measured = _RANGES[name]
    if isinstance(value, int) and abs(value) >= 2**1023:
        raise UsageError(f"{where}: {name} must be a number that a float can hold; got one above 2^1023. {hint}")
    x = torch.as_tensor(value, dtype=torch.float64)
    above = x > low if ends[0] == "(" else x >= low - _SLACK * measured
    below = x < high if ends[1] == ")" else x <= high + _SLACK * measured
    wrong = ~(above & below | x.isnan() & measured)
    if bool(wrong.any()):
        many = f" ({int(wrong.sum())} of {x.numel()} values)" if x.numel() > 1 else ""
        raise UsageError(
            f"{where}: {name} must lie in {ends[0]}{low:g}, {high:g}{ends[1]}; got {float(x[wrong][0]):g}{many}. {hint}"
        )
    x = x.clamp(low, high) if measured else x
    return x if isinstance(value, Tensor) else float(x)


def branch_gain(where: str, alpha: Number, d: Number | None, sigma: Number | None) -> Result:
    """alpha^2 d sigma^2: the energy a branch adds for each unit it is fed. d sigma^2 = 1 when sigma is not given."""
    (alpha,) = checked(where, alpha=alpha)
    if d is not None:
        (d,) = checked(where, d=d)
    if sigma is None:
        return alpha**2
    (sigma,) = checked(where, sigma=sigma)
    if d is None:
        raise UsageError(f"{where}: sigma must come with the width d; got sigma = {sigma} alone. Give d as well.")
    return alpha**2 * d * sigma**2


def as_tensors(*values: Number) -> list[Tensor]:
    """The values as float64 tensors of one shape, where the first tensor is."""
    device = next((v.device for v in values if isinstance(v, Tensor) and v.ndim), None)
    return list(torch.broadcast_tensors(*(torch.as_tensor(v, dtype=torch.float64, device=device) for v in values)))


def plain(result: Tensor, *inputs: Number) -> Result:
    """The result as a float when no input was a tensor."""
    return result if any(isinstance(v, Tensor) for v in inputs) else result.item()
