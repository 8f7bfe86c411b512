"""ResiDual: a post-norm stream that branches read, and a second one that sums them (Xie et al. 2023, 2304.14802).

The state between blocks is the pair (X, D), X being the main stream, which a scan reads; D starts as the input. The
model gives X + LN(D).
"""

from dataclasses import replace

from torch import Tensor, nn

from depthscope.junctions import POST_NORM, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve


class _Begin(nn.Module):
    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        return X, X.clone()


class _End(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, X: Tensor, D: Tensor) -> Tensor:
        return X + self.norm(D)


@shelve("wiring", name="resi_dual")
class ResiDual(Wiring):
    """Y_1 = X + alpha SA(X), Y_2 = LN(Y_1), Y_3 = Y_2 + FFN(Y_2), D_1 = D + alpha SA(X) + FFN(Y_2), Y_4 = LN(Y_3)"""

    source = "Xie et al. 2023 (2304.14802)"
    plain = "post_norm"
    streams = ("D_1",)
    junctions = staticmethod(everywhere(replace(POST_NORM, side_stream=True)))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_1, self.norm_2 = nn.LayerNorm(design.d), nn.LayerNorm(design.d)

    def steps(self, X: tuple[Tensor, Tensor], SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        main, D = X
        A = SA(main)
        Y_1 = self.join_1(main, A)
        Y_2 = self.norm_1(Y_1)
        F = FFN(Y_2)
        Y_3 = self.join_2(Y_2, F)
        D_1 = self.join_2(self.join_1(D, A), F)
        Y_4 = self.norm_2(Y_3)
        return {"Y_1": Y_1, "Y_2": Y_2, "Y_3": Y_3, "D_1": D_1, "Y_4": Y_4}

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return _Begin()

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return _End(design.d)
