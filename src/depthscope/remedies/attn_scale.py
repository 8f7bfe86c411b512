"""AttnScale: strengthen what attention does beside averaging (Wang et al. 2022)."""

from torch import Tensor

from depthscope._registry import shelve
from depthscope.remedies._attention import AttentionRemedy, uniform


@shelve("remedy")
class AttnScale(AttentionRemedy):
    """P' = U + (1 + w) (P - U),    U = 1 1^T / n.    Wang et al. 2022 (2203.05962), section 4.1"""

    source = "Wang et al. 2022 (2203.05962), section 4.1; w per head is learned from 0 there, one fixed w here"
    off = {"w": 0.0}

    def __init__(self, w: float = 0.5) -> None:
        super().__init__()
        self.w = self._within("w", w, 0.0, 1e3, "0 does nothing.")

    def pattern(self, P: Tensor) -> Tensor:
        U = uniform(P)
        return U + (1 + self.w) * (P - U)
