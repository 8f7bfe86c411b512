"""B2T: post-norm with the block's input added once more before its last norm (Takase et al. 2022, 2206.00330).

One version of the official code also scales the first weights by 1 / sqrt(L); the paper's formula, here, does not.
"""

from dataclasses import replace

from torch import Tensor

from depthscope.junctions import POST_NORM, everywhere
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


@shelve("wiring", name="b2t")
class B2T(PostNorm):
    """Y_1 = X + alpha SA(X),  Y_2 = LN(Y_1),  Y_3 = Y_2 + FFN(Y_2) + X,  Y_4 = LN(Y_3)"""

    source = "Takase et al. 2022 (2206.00330)"
    plain = "post_norm"
    junctions = staticmethod(everywhere(replace(POST_NORM, network=replace(POST_NORM.network, again=1.0))))

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        Y_1 = self.join_1(X, SA(X))
        Y_2 = self.norm_1(Y_1)
        Y_3 = self.join_2(Y_2, FFN(Y_2)) + X
        Y_4 = self.norm_2(Y_3)
        return {"Y_1": Y_1, "Y_2": Y_2, "Y_3": Y_3, "Y_4": Y_4}
