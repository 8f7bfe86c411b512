"""Graph filter self-attention: a polynomial of P (Choi et al. 2024)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy, identity


@shelve("remedy")
class GFSA(AttentionRemedy):
    """P' = w_0 I + w_1 P + w_K (P + (K - 1) (P^2 - P)).    Choi et al. 2024 (2312.04234)

    learnable=True learns all three, for each head with heads=h; from 0, 1, 0 it starts as plain attention. The official
    code learns w_K alone, from 0, with w_1 = 1 and a constant w_0.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.GFSA()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Choi et al. 2024 (2312.04234); the default weights and K are ours"
    off = {"w_0": 0.0, "w_1": 1.0, "w_K": 0.0}
    learns = ("w_0", "w_1", "w_K")

    def __init__(
        self,
        w_0: float = 0.5,
        w_1: float = 1.0,
        w_K: float = -0.5,
        *,
        K: int = 3,
        learnable: bool = False,
        heads: int = 1,
    ) -> None:
        super().__init__(learnable, heads)
        self.w_0 = self._per_head("w_0", self._within("w_0", w_0, -1e3, 1e3, "The weight of the identity."))
        self.w_1 = self._per_head("w_1", self._within("w_1", w_1, -1e3, 1e3, "The weight of attention."))
        self.w_K = self._per_head("w_K", self._within("w_K", w_K, -1e3, 1e3, "The weight of P^K, to first order."))
        self.K = self._count("K", K)

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        power = P + (self.K - 1) * (P @ P - P)
        return self.w_0 * identity(P) + self.w_1 * P + self.w_K * power
