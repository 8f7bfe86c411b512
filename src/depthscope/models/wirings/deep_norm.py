"""DeepNorm: post-norm with a heavier skip and smaller branches at the start (Wang et al. 2022, 2203.00555).

alpha_N = (2N)^(1/4) on the skip, beta = (8N)^(-1/4) on the matrices W, W_O, W_1, W_2 (not W_q, W_k): the paper's values
for a model that is an encoder or a decoder alone. The paper draws the matrices by Xavier's law: weights="xavier".
"""

from torch import Tensor

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.design import Design
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.registry import shelve


@shelve("wiring", name="deep_norm")
class DeepNorm(PostNorm):
    """Y_1 = alpha_N X + alpha SA(X), Y_2 = LN(Y_1), Y_3 = alpha_N Y_2 + FFN(Y_2), Y_4 = LN(Y_3); alpha_N^4 = 2 depth"""

    source = "Wang et al. 2022 (2203.00555)"
    plain = "post_norm"
    off = {"alpha_N": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.alpha_N = self.junctions(design.depth, index).attention.skip

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        gains = dict.fromkeys(("W", "W_O", "W_1", "W_2"), (8 * depth) ** -0.25)
        return both(Junction(skip=(2 * depth) ** 0.25, normed_sum=True), gains=gains)

    def keep_1(self, X: Tensor) -> Tensor:
        return self.alpha_N * X

    def keep_2(self, Y: Tensor) -> Tensor:
        return self.alpha_N * Y
