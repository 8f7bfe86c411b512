"""Shrink: every token goes a little towards zero."""

from torch import Tensor

from depthscope.interventions.means import Stretch
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class Shrink(Remedy):
    """Y = (1 - by) X,  by in [0, 1]."""

    at = "block_out"
    source = "Nobody 2026 (0000.00000)"
    off = {"by": 0.0}

    def __init__(self, by: float = 0.1) -> None:
        super().__init__()
        self.by = self._within("by", by, 0.0, 1.0, "0 does nothing.")

    @property
    def causal_safe(self) -> bool:
        return True  # no token sees another

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        return (1 - self.by) * X
