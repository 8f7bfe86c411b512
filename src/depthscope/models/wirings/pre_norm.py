"""Pre-norm: norms at the entrance of each branch, a stream that no norm touches (Yu & Zhang 2023, (19))."""

from torch import Tensor, nn

from depthscope.junctions import PRE_NORM, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve


@shelve("wiring", name="pre_norm")
class PreNorm(Wiring):
    """X_hat = LN(X),  Y = X + alpha SA(X_hat),  Y_hat = LN(Y),  Z = Y + FFN(Y_hat); one more LN after the last block"""

    source = "Xiong et al. 2020 (2002.04745)"
    plain = "post_norm"
    reads = "X_hat"
    junctions = staticmethod(everywhere(PRE_NORM))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_1, self.norm_2 = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X)
        Y = self.join_1(self.keep_1(X), SA(X_hat))
        Y_hat = self.norm_2(Y)
        Z = self.join_2(self.keep_2(Y), FFN(Y_hat))
        return {"X_hat": X_hat, "Y": Y, "Y_hat": Y_hat, "Z": Z}

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.LayerNorm(design.d)
