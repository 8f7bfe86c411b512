"""Attention that is written out: the scores q k^T and their softmax, on the way from queries and keys to values."""

from dataclasses import dataclass, replace

from torch import Tensor

from depthscope.laws.law import Law


@dataclass(frozen=True, eq=False)
class Scores:
    """scale q k^T + bias, for heads of d_h channels; bias (B or 1, heads or 1, n, n), None for nothing."""

    q: Law
    k: Law
    d_h: int
    heads: int
    scale: float = 1.0
    bias: Tensor | None = None

    def times(self, factor: float) -> "Scores":
        return replace(self, scale=self.scale * factor, bias=None if self.bias is None else factor * self.bias)

    def plus(self, bias: Tensor) -> "Scores":
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    def replaced(self, where: Tensor, value: float) -> "Scores":
        """Another value in some places: a large negative one, since scores there are not looked at any more."""
        before = where.new_zeros(1).double() if self.bias is None else self.bias
        return replace(self, bias=before.masked_fill(where, value))


@dataclass(frozen=True, eq=False)
class Pattern:
    """The softmax of scores over keys."""

    scores: Scores


@dataclass(frozen=True, eq=False)
class Unread:
    """What is made of a pattern beside the tokens, as its mean over heads: there, and not known."""


Attention = Scores | Pattern | Unread
