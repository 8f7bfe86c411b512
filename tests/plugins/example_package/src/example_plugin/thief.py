"""This one would take the place of a metric that is there."""

from torch import Tensor

from depthscope.registry import metric


@metric("state", takes=("X",), bounds=(0, 1))
def t_sim(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Zero, whatever comes."""
    return X.sum((-2, -1)) * 0
