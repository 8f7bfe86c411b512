"""QK-norm: queries and keys of unit length, so that scores cannot grow (Henry et al. 2020)."""

from torch import Tensor
from torch.nn import functional as F

from depthscope.errors import UsageError
from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy


@shelve("remedy")
class QKNorm(AttentionRemedy):
    """P = softmax(g q/|q| . k/|k|).    Henry et al. 2020 (2010.04245)

    In the paper g is learned: QKNorm(learnable=True). The official code starts it at log2(n^2 - n) for sequences of
    length n: 10 for n = 32, 12 for 65, 15 for 197. The model's own scale of the scores is not used. g = 0 leaves the
    model as it is.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.QKNorm()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Henry et al. 2020 (2010.04245)"
    off = {"g": 0.0}
    learns = ("g",)
    scale = 1.0

    def __init__(self, g: float = 10.0, *, learnable: bool = False, heads: int = 1) -> None:
        super().__init__(learnable, heads)
        if learnable and g == 0:
            raise UsageError(
                "QKNorm: a learnable g must start above 0; got 0, where attention is uniform. Start at 10."
            )
        self.g = self._per_head("g", self._within("g", g, 0.0, 1e6, "The largest score; 0 leaves the model as it is."))

    def aim(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.g * F.normalize(q, dim=-1), F.normalize(k, dim=-1)
