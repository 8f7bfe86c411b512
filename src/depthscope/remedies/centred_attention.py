"""Centred self-attention: rows of P that sum to zero (Ali et al. 2023)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy


@shelve("remedy")
class CentredAttention(AttentionRemedy):
    """P' = P - strength U,    U = 1 1^T / n.    Ali, Galanti & Wolf 2023 (2306.01610)

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.CentredAttention()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Ali, Galanti & Wolf 2023 (2306.01610); strength 1 is the paper's"
    off = {"strength": 0.0}

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = self._within("strength", strength, 0.0, 1.0, "1 makes every row sum to zero, 0 does nothing.")

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        return P - self.strength * U
