"""How weights meet values: which axes of a matrix of weights are its queries, its keys, and shared with the values.

The axis that a product sums over is the keys'; the one that the values do not have is the queries'. This holds in every
layout, and where sizes are equal too.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from depthscope.traces.operations import Operation, operands_of

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "mm"}


@dataclass(frozen=True)
class Contraction:
    """Axes of the weights: shared with the values (batch, heads), the queries', the keys'."""

    shared: tuple[int, ...]
    query: int
    key: int

    def arranged(self, weights: Tensor) -> Tensor:
        """The weights as (..., n, m)."""
        return weights.permute(*self.shared, self.query, self.key)


def contraction_of(op: Operation, weights: Tensor) -> Contraction | None:
    """How a product sums `weights`, one of its two operands, with values; None where the other one holds no values."""
    pair = operands_of(op.args)
    if op.name not in PRODUCTS or len(pair) != 2 or not all(isinstance(x, Tensor) for x in pair):
        return None
    first = pair[0] is weights
    values = pair[1] if first else pair[0]
    if isinstance(values, nn.Parameter):  # heads that are mixed with each other, keys that are projected
        return None
    if op.name == "einsum":
        return _of_equation(op.args[0], first, weights, values) if isinstance(op.args[0], str) else None
    if op.name == "__rmatmul__":
        first = not first
    if values.ndim < min(3, weights.ndim) or weights.ndim < 2:
        return None
    last = weights.ndim - 1
    query, key = (last - 1, last) if first else (last, last - 1)
    return Contraction(tuple(range(last - 1)), query, key)


def _of_equation(equation: str, first: bool, weights: Tensor, values: Tensor) -> Contraction | None:
    """bhij,bhjd->bhid: b and h are shared, j is summed, i is the queries'."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    own, _, other = left.partition(",")
    if not arrow or not other:
        return None
    own, other = (own, other) if first else (other, own)
    letters = _spelled(own, weights.ndim)
    others, given = _spelled(other, values.ndim), out
    if "..." in out:
        given = out.replace("...", "".join(c for c in letters if c.isdigit()))
    if letters is None or others is None or len(set(letters)) < len(letters):
        return None
    keys = [i for i, c in enumerate(letters) if c in others and c not in given]
    queries = [i for i, c in enumerate(letters) if c not in others and c in given]
    if len(keys) != 1:
        return None
    if len(queries) > 1:  # values that heads share: the axis that is as long as the keys'
        queries = [i for i in queries if weights.shape[i] == weights.shape[keys[0]]]
    if len(queries) != 1:
        return None
    shared = tuple(i for i in range(weights.ndim) if i not in (keys[0], queries[0]))
    return Contraction(shared, queries[0], keys[0])


def _spelled(term: str, ndim: int) -> str:
    """A letter for each axis: digits, counted from the last, for those that an ellipsis stands for."""
    hidden = ndim - len(term.replace("...", ""))
    return term.replace("...", "".join(str(i) for i in reversed(range(hidden))))
