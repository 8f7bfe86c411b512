"""Mind the gap: remove the outlier eigenvalue of attention, and scale up what is left (Nait Saada et al. 2024)."""

from torch import Tensor

from depthscope._registry import shelve
from depthscope.remedies._attention import AttentionRemedy, uniform


@shelve("remedy")
class MindTheGap(AttentionRemedy):
    """P' = upscale (P - strength U),    upscale 1 or sqrt(n).    Nait Saada et al. 2024 (2410.07799)

    The official code multiplies P - U by sqrt(n) and the values by 1 / sqrt(n), which is P - U again: upscale "none".
    """

    source = "Nait Saada, Naderi & Tanner 2024 (2410.07799)"
    off = {"strength": 0.0}
    choices = {"upscale": ("none", "sqrt")}

    def __init__(self, strength: float = 1.0, *, upscale: str = "none") -> None:
        super().__init__()
        self.strength = self._within("strength", strength, 0.0, 1.0, "1 removes the eigenvalue 1, 0 does nothing.")
        self.upscale = self._choose("upscale", upscale)

    def pattern(self, P: Tensor) -> Tensor:
        scale = P.shape[-1] ** 0.5 if self.upscale == "sqrt" else 1.0
        return scale * (P - self.strength * uniform(P))
