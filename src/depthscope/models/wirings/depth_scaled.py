"""Depth scaling: branches divided by the root of the depth (Noci et al. 2022, 2206.03126).

The total growth of the odds of token similarity stays bounded at any depth, near exp(alpha^2); norms in
post-norm order.
"""

import torch
from torch import Tensor

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.design import Design
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.registry import shelve


@shelve("wiring", name="depth_scaled")
class DepthScaled(PostNorm):
    """Y_1 = X + alpha SA(X) / sqrt(L),  Y_2 = LN(Y_1),  Y_3 = Y_2 + FFN(Y_2) / sqrt(L),  Y_4 = LN(Y_3);  L = depth"""

    source = "Noci et al. 2022 (2206.03126)"
    plain = "post_norm"
    off = {"scale": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.scale = self.junctions(design.depth, index).attention.write

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return both(Junction(write=depth**-0.5, normed_sum=True))

    def join_1(self, X: Tensor, A: Tensor) -> Tensor:
        return torch.add(X, A, alpha=self.alpha * self.scale)

    def join_2(self, Y: Tensor, F: Tensor) -> Tensor:
        return torch.add(Y, F, alpha=self.scale)
