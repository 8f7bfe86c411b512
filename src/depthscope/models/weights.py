"""Weight laws: how the matrices of a block are drawn.

A law fills `weight` (..., fan_out, fan_in) and `bias` (..., fan_out), if there is one, in place; leading axes are
independent copies. `role` is the matrix's letter: W_q W_k W W_O (attention), W_1 W_2 W_gate (feed-forward). h is the
number of heads.
"""

from functools import lru_cache

import torch
from torch import Tensor

from depthscope.registry import lookup, shelve


def _normal(weight: Tensor, bias: Tensor | None, variance: float) -> None:
    weight.normal_(0.0, variance**0.5)
    if bias is not None:
        bias.zero_()


def _uniform(weight: Tensor, bias: Tensor | None, variance: float) -> None:
    edge = (3 * variance) ** 0.5
    weight.uniform_(-edge, edge)
    if bias is not None:
        bias.zero_()


@shelve("weight law")
def xavier(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """every matrix uniform with variance 2 / (fan_in + fan_out): 1/d for the d x d ones; biases zero"""
    _uniform(weight, bias, 2 / (weight.shape[-1] + weight.shape[-2]))


@shelve("weight law")
def torch_default(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """every matrix as nn.Linear draws it: uniform with variance 1 / (3 fan_in), biases too"""
    variance = 1 / (3 * weight.shape[-1])
    _uniform(weight, None, variance)
    if bias is not None:
        _uniform(bias, None, variance)


@shelve("weight law")
def unit_gain(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """W normal with variance 1/d, as the theory assumes (d sigma^2 = 1), without bias; the rest as torch_default"""
    if role == "W":
        _normal(weight, bias, 1 / weight.shape[-1])
    else:
        torch_default(weight, bias, role, h)


@shelve("weight law")
def paper_literal(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """W normal with variance h/d, as section 2.4 of Yu & Zhang 2023 prints it; the rest as torch_default"""
    if role == "W":
        _normal(weight, bias, h / weight.shape[-1])
    else:
        torch_default(weight, bias, role, h)


@shelve("weight law")
def paper_literal_he(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """paper_literal with a ReLU network that keeps the energy of its input: variance 2/d for W_1, 1/q for W_2 (He)"""
    if role in ("W_1", "W_2"):
        _normal(weight, bias, (2 if role == "W_1" else 1) / weight.shape[-1])
    else:
        paper_literal(weight, bias, role, h)


@shelve("weight law")
def bert(weight: Tensor, bias: Tensor | None, role: str, h: int) -> None:
    """every matrix normal with standard deviation 0.02 whatever the width, biases zero: BERT's law, made for d = 768"""
    _normal(weight, bias, 0.02**2)


class _Unfilled:
    """Stands in for a tensor that a law fills: it remembers the variance, and holds nothing."""

    def __init__(self, *shape: int) -> None:
        self.shape, self.variance = torch.Size(shape), 0.0

    def normal_(self, mean: float, std: float) -> None:
        self.variance = std**2

    def uniform_(self, low: float, high: float) -> None:
        self.variance = (high - low) ** 2 / 12

    def zero_(self) -> None:
        self.variance = 0.0


@lru_cache
def variances(law: str, role: str, shape: tuple[int, int], h: int) -> tuple[float, float]:
    """What a law, by its name, gives the weights and the biases of one matrix; nothing is drawn."""
    weight, bias = _Unfilled(*shape), _Unfilled(shape[0])
    lookup("weight law", law)(weight, bias, role, h)
    return weight.variance, bias.variance
