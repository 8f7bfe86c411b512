"""A mean over sequences that grows batch by batch, with its spread over sequences and its error over batches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Running:
    """What is known of a quantity after some batches b with w_b sequences and means m_b each; W = sum_b w_b.

    mean = sum_b w_b m_b / W. Sums of squares are kept about the mean, so that nothing cancels when means are far from
    zero, and two parts join to what one pass over all batches would give:

    squares = sum over sequences of (x - mean)^2
    weight_squares, drift, scatter = sum_b w_b^2 (m_b - mean)^k for k = 0, 1, 2
    """

    mean: Tensor
    weight: float
    squares: Any = 0.0  # a tensor like the mean, from the moment on that it is not zero; so are the next two
    weight_squares: float = 0.0
    drift: Any = 0.0
    scatter: Any = 0.0
    batches: int = 1

    @property
    def spread(self) -> Tensor:
        """Standard deviation over sequences."""
        return torch.as_tensor(self.squares / self.weight).sqrt().expand_as(self.mean)

    @property
    def error(self) -> Tensor:
        """Standard error of the mean over batches; NaN for one batch, which does not tell.

        error^2 = B / (B - 1) sum_b w_b^2 (m_b - mean)^2 / W^2, for equal w_b the variance of the m_b over B.
        """
        if self.batches < 2:
            return torch.full_like(self.mean, math.nan)
        factor = self.batches / (self.batches - 1)
        return torch.as_tensor(factor * self.scatter).sqrt().expand_as(self.mean) / self.weight

    def __add__(self, other: "Running") -> "Running":
        weight = self.weight + other.weight
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.weight / weight)
        squares = self.squares + other.squares + apart.square() * (self.weight * other.weight / weight)
        one, two = self._about(mean), other._about(mean)
        return Running(
            mean,
            weight,
            squares,
            self.weight_squares + other.weight_squares,
            one[0] + two[0],
            one[1] + two[1],
            self.batches + other.batches,
        )

    def _about(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """drift and scatter about another number than the mean."""
        moved = self.mean - centre
        drift = self.drift + self.weight_squares * moved
        return drift, self.scatter + 2 * moved * self.drift + self.weight_squares * moved.square()


def of_batch(values: Tensor) -> Running:
    """One batch, values (..., sequences)."""
    count = values.shape[-1]
    return Running(values.mean(-1), count, weight_squares=float(count**2))


def with_spread(values: Tensor) -> Running:
    """One batch, values (..., sequences), whose spread is asked for too."""
    count, mean = values.shape[-1], values.mean(-1)
    return Running(mean, count, (values - mean[..., None]).square().sum(-1), float(count**2))


def each_with_spread(values: Tensor) -> list[Running]:
    """The same of several quantities, values (quantities, ..., sequences)."""
    whole = with_spread(values)
    pairs = zip(whole.mean.unbind(), whole.squares.unbind(), strict=True)
    return [replace(whole, mean=mean, squares=squares) for mean, squares in pairs]


def merged(
    one: Mapping[Key, Value], other: Mapping[Key, Value], join: Callable[[Value, Value], Value]
) -> dict[Key, Value]:
    """Both mappings in one, joined where both have an entry."""
    both = {key: join(value, other[key]) if key in other else value for key, value in one.items()}
    return both | {key: value for key, value in other.items() if key not in one}
