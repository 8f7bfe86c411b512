"""LayerNorm scaling: pre-norm with norms divided by the root of the block's index (Sun et al. 2025, 2502.05795)."""

from torch import Tensor

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


@shelve("wiring", name="layer_norm_scaling")
class LayerNormScaling(PreNorm):
    """X_hat = LN(X) / sqrt(l),  Y = X + alpha SA(X_hat),  Y_hat = LN(Y) / sqrt(l),  Z = Y + FFN(Y_hat); LN at end"""

    source = "Sun et al. 2025 (2502.05795)"
    plain = "pre_norm"
    off = {"scale": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.scale = self.junctions(design.depth, index).attention.read

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return both(Junction(normed_read=True, read=index**-0.5))

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X) * self.scale
        Y = self.join_1(X, SA(X_hat))
        Y_hat = self.norm_2(Y) * self.scale
        Z = self.join_2(Y, FFN(Y_hat))
        return {"X_hat": X_hat, "Y": Y, "Y_hat": Y_hat, "Z": Z}
