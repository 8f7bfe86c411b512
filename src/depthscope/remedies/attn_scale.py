"""AttnScale: strengthen what attention does beside averaging (Wang et al. 2022)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy


@shelve("remedy")
class AttnScale(AttentionRemedy):
    """P' = U + (1 + w) (P - U),    U = 1 1^T / n.    Wang et al. 2022 (2203.05962), section 4.1

    In the paper w is learned from 0, one for each head: AttnScale(0.0, learnable=True, heads=h).

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.AttnScale()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Wang et al. 2022 (2203.05962), section 4.1; the default w is ours"
    off = {"w": 0.0}
    learns = ("w",)

    def __init__(self, w: float = 0.5, *, learnable: bool = False, heads: int = 1) -> None:
        super().__init__(learnable, heads)
        self.w = self._per_head("w", self._within("w", w, -1e3, 1e3, "0 does nothing."))

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        return U + (1 + self.w) * (P - U)
