"""SkipInit: a learnable scalar at the end of each branch that starts at 0 (De & Smith 2020, 2002.10444).

The paper's networks had batch norm to replace; in Transformers the norms stay, in pre-norm order,
and a block is the identity at the start.
"""

import torch
from torch import Tensor, nn

from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.models.wirings.wiring import Branch
from depthscope.registry import shelve


@shelve("wiring", name="skip_init")
class SkipInit(PreNorm):
    """X_hat = LN(X),  Y = X + a_1 alpha SA(X_hat),  Y_hat = LN(Y),  Z = Y + a_2 FFN(Y_hat);  LN at the end"""

    source = "De & Smith 2020 (2002.10444)"
    plain = "pre_norm"
    off = {"a_1": 1.0, "a_2": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.a_1, self.a_2 = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        X_hat = self.norm_1(X)
        Y = X + self.a_1 * self.alpha * SA(X_hat)
        Y_hat = self.norm_2(Y)
        Z = Y + self.a_2 * FFN(Y_hat)
        return {"X_hat": X_hat, "Y": Y, "Y_hat": Y_hat, "Z": Z}
