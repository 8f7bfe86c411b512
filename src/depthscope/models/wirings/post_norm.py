"""Post-norm: the classic block, norms after the residual sums (Yu & Zhang 2023, Algorithm 1)."""

from torch import Tensor, nn

from depthscope.junctions import POST_NORM, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve


@shelve("wiring", name="post_norm")
class PostNorm(Wiring):
    """Y_1 = X + alpha SA(X),  Y_2 = LN(Y_1),  Y_3 = Y_2 + FFN(Y_2),  Y_4 = LN(Y_3)"""

    source = "Vaswani et al. 2017 (1706.03762)"
    junctions = staticmethod(everywhere(POST_NORM))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_1, self.norm_2 = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        Y_1 = self.join_1(self.keep_1(X), SA(X))
        Y_2 = self.norm_1(Y_1)
        Y_3 = self.join_2(self.keep_2(Y_2), FFN(Y_2))
        Y_4 = self.norm_2(Y_3)
        return {"Y_1": Y_1, "Y_2": Y_2, "Y_3": Y_3, "Y_4": Y_4}
