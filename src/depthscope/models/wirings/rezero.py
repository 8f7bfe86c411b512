"""ReZero: no norms, one learnable scalar for both branches that starts at 0 (Bachlechner et al. 2020, 2003.04887)."""

import torch
from torch import Tensor, nn

from depthscope.junctions import Junction, both, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve


@shelve("wiring", name="rezero")
class ReZero(Wiring):
    """Y = X + a alpha SA(X),  Z = Y + a FFN(Y);  a = 0 at the start, one for each block: the identity"""

    source = "Bachlechner et al. 2020 (2003.04887)"
    plain = "post_norm"
    junctions = staticmethod(everywhere(both(Junction(write=0.0))))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.a = nn.Parameter(torch.zeros(()))

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        Y = X + self.a * self.alpha * SA(X)
        Z = Y + self.a * FFN(Y)
        return {"Y": Y, "Z": Z}
