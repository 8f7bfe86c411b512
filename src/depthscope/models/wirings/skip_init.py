"""SkipInit: a learnable scalar at the end of each branch that starts at 0 (De & Smith 2020, 2002.10444).

The paper's networks had batch norm to replace; in Transformers the norms stay, in pre-norm order,
and a block is the identity at the start.
"""

import torch
from torch import Tensor, nn

from depthscope.junctions import Junction, both, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.registry import shelve


@shelve("wiring", name="skip_init")
class SkipInit(PreNorm):
    """X_hat = LN(X),  Y = X + a_1 alpha SA(X_hat),  Y_hat = LN(Y),  Z = Y + a_2 FFN(Y_hat);  LN at the end"""

    source = "De & Smith 2020 (2002.10444)"
    plain = "pre_norm"
    off = {"a_1": 1.0, "a_2": 1.0}
    junctions = staticmethod(everywhere(both(Junction(normed_read=True, write=0.0))))

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.a_1, self.a_2 = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def join_1(self, X: Tensor, A: Tensor) -> Tensor:
        return X + self.a_1 * self.alpha * A

    def join_2(self, Y: Tensor, F: Tensor) -> Tensor:
        return Y + self.a_2 * F
