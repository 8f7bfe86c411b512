"""Peri-LN: norms before and after each branch, of the embedding, and at the end (Kim et al. 2025, 2502.02732).

The block is that of sandwich; the norm of the embedding makes the difference. The paper's norm may be RMSNorm; here it
is LN as in all wirings, so that they are compared with one norm.
"""

import torch
from torch import Tensor, nn

from depthscope._registry import shelve
from depthscope.models.design import Design
from depthscope.models.wirings._wiring import Branch, Wiring


@shelve("wiring", name="peri_ln")
class PeriLN(Wiring):
    """X_hat = LN(X), A = LN(SA(X_hat)), Y = X + alpha A, Y_hat = LN(Y), F = LN(FFN(Y_hat)), Z = Y + F; LN both ends"""

    reads = "X_hat"

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_1, self.norm_2 = nn.LayerNorm(design.d), nn.LayerNorm(design.d)
        self.norm_a, self.norm_f = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X)
        A = self.norm_a(SA(X_hat))
        Y = torch.add(X, A, alpha=self.alpha)
        Y_hat = self.norm_2(Y)
        F = self.norm_f(FFN(Y_hat))
        Z = Y + F
        return {"X_hat": X_hat, "A": A, "Y": Y, "Y_hat": Y_hat, "F": F, "Z": Z}

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return nn.LayerNorm(design.d)

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.LayerNorm(design.d)
