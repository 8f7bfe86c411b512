"""LayerScale: a learnable factor for each channel of a branch, small at the start (Touvron et al. 2021, 2103.17239)."""

import torch
from torch import Tensor, nn

from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


def first_g(depth: int) -> float:
    """The first value of every entry of g: smaller the deeper, as the paper has it."""
    return 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6


@shelve("wiring", name="layer_scale")
class LayerScale(PreNorm):
    """X_hat = LN(X),  Y = X + g_1 * alpha SA(X_hat),  Y_hat = LN(Y),  Z = Y + g_2 * FFN(Y_hat);  LN at the end"""

    source = "Touvron et al. 2021 (2103.17239)"
    plain = "pre_norm"
    off = {"g_1": 1.0, "g_2": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        g = torch.full((design.d,), first_g(design.depth))
        self.g_1, self.g_2 = nn.Parameter(g.clone()), nn.Parameter(g.clone())

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X)
        Y = torch.add(X, self.g_1 * SA(X_hat), alpha=self.alpha)
        Y_hat = self.norm_2(Y)
        Z = Y + self.g_2 * FFN(Y_hat)
        return {"X_hat": X_hat, "Y": Y, "Y_hat": Y_hat, "Z": Z}
