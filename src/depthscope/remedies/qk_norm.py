"""QK-norm: queries and keys of unit length, so that scores cannot grow (Henry et al. 2020)."""

from torch import Tensor
from torch.nn import functional as F

from depthscope._registry import shelve
from depthscope.remedies._attention import AttentionRemedy


@shelve("remedy")
class QKNorm(AttentionRemedy):
    """P = softmax(g q/|q| . k/|k|).    Henry et al. 2020 (2010.04245)"""

    source = "Henry et al. 2020 (2010.04245); g is learned there, fixed here"
    off = {"g": 0.0}

    def __init__(self, g: float = 10.0) -> None:
        super().__init__()
        self.g = self._within("g", g, 0.0, 1e6, "The largest score; 0 leaves the model as it is.")

    def aim(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        own = (
            q.shape[-1] ** 0.5
        )  # undoes the usual 1 / sqrt(d_h); a model with another scale has its g multiplied by it
        return self.g * own * F.normalize(q, dim=-1), F.normalize(k, dim=-1)
