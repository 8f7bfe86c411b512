"""Depth scaling: branches divided by the root of the depth (Noci et al. 2022, 2206.03126).

The total growth of the odds of token similarity stays bounded at any depth, near exp(alpha^2); norms in
post-norm order.
"""

import torch
from torch import Tensor

from depthscope.models.design import Design
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


@shelve("wiring", name="depth_scaled")
class DepthScaled(PostNorm):
    """Y_1 = X + alpha SA(X) / sqrt(L),  Y_2 = LN(Y_1),  Y_3 = Y_2 + FFN(Y_2) / sqrt(L),  Y_4 = LN(Y_3);  L = depth"""

    source = "Noci et al. 2022 (2206.03126)"
    plain = "post_norm"
    off = {"scale": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.scale = design.depth**-0.5

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        Y_1 = torch.add(X, SA(X), alpha=self.alpha * self.scale)
        Y_2 = self.norm_1(Y_1)
        Y_3 = torch.add(Y_2, FFN(Y_2), alpha=self.scale)
        Y_4 = self.norm_2(Y_3)
        return {"Y_1": Y_1, "Y_2": Y_2, "Y_3": Y_3, "Y_4": Y_4}
