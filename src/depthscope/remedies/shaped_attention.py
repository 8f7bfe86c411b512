"""Shaped attention: the identity at first order, attention as a correction (Noci et al. 2023, He & Hofmann 2023)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy, identity


@shelve("remedy")
class ShapedAttention(AttentionRemedy):
    """P' = a I + b P - c U.    He & Hofmann 2023 (2311.01906); a = b = c = 1: Noci et al. 2023 (2306.17759)

    In the first paper a, b, c are learned from 1 for each head: ShapedAttention(learnable=True, heads=h).

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.ShapedAttention()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "He & Hofmann 2023 (2311.01906); Noci et al. 2023 (2306.17759)"
    off = {"a": 0.0, "b": 1.0, "c": 0.0}
    learns = ("a", "b", "c")

    def __init__(
        self, a: float = 1.0, b: float = 1.0, c: float = 1.0, *, learnable: bool = False, heads: int = 1
    ) -> None:
        super().__init__(learnable, heads)
        self.a = self._per_head("a", self._within("a", a, -1e3, 1e3, "The weight of the identity."))
        self.b = self._per_head("b", self._within("b", b, -1e3, 1e3, "The weight of attention."))
        self.c = self._per_head("c", self._within("c", c, -1e3, 1e3, "The weight of the uniform matrix."))

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        return self.a * identity(P) + self.b * P - self.c * U
