"""Sandwich-LN: pre-norm with a second norm at the end of each branch (Ding et al. 2021, CogView, 2105.13290)."""

from torch import Tensor, nn

from depthscope.junctions import Junction, both, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


@shelve("wiring", name="sandwich")
class Sandwich(PreNorm):
    """X_hat = LN(X), A = LN(SA(X_hat)), Y = X + alpha A, Y_hat = LN(Y), F = LN(FFN(Y_hat)), Z = Y + F; LN at end"""

    source = "Ding et al. 2021 (2105.13290)"
    plain = "pre_norm"
    junctions = staticmethod(everywhere(both(Junction(normed_read=True, normed_write=True))))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_a, self.norm_f = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X)
        A = self.norm_a(SA(X_hat))
        Y = self.join_1(X, A)
        Y_hat = self.norm_2(Y)
        F = self.norm_f(FFN(Y_hat))
        Z = self.join_2(Y, F)
        return {"X_hat": X_hat, "A": A, "Y": Y, "Y_hat": Y_hat, "F": F, "Z": Z}
