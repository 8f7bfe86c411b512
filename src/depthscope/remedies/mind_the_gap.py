"""Mind the gap: remove the outlier eigenvalue of attention, and scale up what is left (Nait Saada et al. 2024)."""

from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy


@shelve("remedy")
class MindTheGap(AttentionRemedy):
    """P' = upscale (P - strength U),    upscale 1 or sqrt(n).    Nait Saada et al. 2024 (2410.07799)

    n counts what a query sees. The official code multiplies P - U by sqrt(n) and the values by 1 / sqrt(n), which is
    P - U again: upscale "none", and then the same as CentredAttention.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.MindTheGap()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Nait Saada, Naderi & Tanner 2024 (2410.07799)"
    off = {"strength": 0.0}
    choices = {"upscale": ("none", "sqrt")}

    def __init__(self, strength: float = 1.0, *, upscale: str = "none") -> None:
        super().__init__()
        self.strength = self._within("strength", strength, 0.0, 1.0, "1 removes the eigenvalue 1, 0 does nothing.")
        self.upscale = self._choose("upscale", upscale)

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        new = P - self.strength * U
        return new * (U > 0).sum(-1, keepdim=True).sqrt() if self.upscale == "sqrt" else new
