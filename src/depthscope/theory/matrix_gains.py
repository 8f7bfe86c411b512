"""The matrices of a block in a few numbers, and what the factors of a wiring make of them."""

from collections.abc import Mapping
from typing import NamedTuple

from depthscope.theory.two_numbers import hidden_overlaps


class MatrixGains(NamedTuple):
    """What drawn matrices make of one unit of energy.

    s_A = d Var(W_V) d Var(W_O), score_variance = d Var(W_q) d Var(W_k), hidden_variance = d Var(W_1) (of W_gate for
    swiglu); k: the energy that the network makes of tokens of energy 1. s_O and s_2: of the last matrices alone, which
    is all that counts behind an inner norm.
    """

    s_A: float
    score_variance: float
    k: float
    hidden_variance: float
    s_O: float = 1.0
    s_2: float = 1.0

    def times(self, factors: Mapping[str, float], activation: str) -> "MatrixGains":
        """The same with factors on the matrices, by role; a matrix that is not named keeps its size."""
        if not factors:
            return self
        W, W_O, W_q, W_k, W_1, W_2, W_gate = (
            factors.get(role, 1.0) ** 2 for role in ("W", "W_O", "W_q", "W_k", "W_1", "W_2", "W_gate")
        )
        gated = activation == "swiglu"
        function, read, linear = ("silu", W_gate, W_1) if gated else (activation, W_1, 1.0)
        before, after = (hidden_overlaps(function, v * self.hidden_variance, 0.0)[0] for v in (1.0, read))
        return MatrixGains(
            self.s_A * W * W_O,
            self.score_variance * W_q * W_k,
            self.k * linear * W_2 * (after / before if before else 1.0),
            self.hidden_variance * read,
            self.s_O * W_O,
            self.s_2 * W_2,
        )
