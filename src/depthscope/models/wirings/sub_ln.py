"""Sub-LN: pre-norm with a second norm inside each branch, before W_O and before W_2 (Wang et al. 2022, 2210.06423).

The matrices W, W_O, W_1, W_2 are drawn with the gain sqrt(log 2N). Without W_O (output=False) attention ends with its
second norm, which then stands in the place of W_O.
"""

import math

from torch import Tensor, nn

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.registry import shelve


class _Projection(nn.Linear):
    """LN(X) W in the place of a matrix W; no name of a norm, which a scan would take it for."""

    def __init__(self, W: nn.Linear) -> None:
        super().__init__(W.in_features, W.out_features, bias=W.bias is not None)
        self.norm = nn.LayerNorm(W.in_features)

    def forward(self, X: Tensor) -> Tensor:
        return super().forward(self.norm(X))


@shelve("wiring", name="sub_ln")
class SubLN(PreNorm):
    """X_hat = LN(X), Y = X + alpha LN(heads(X_hat)) W_O, Y_hat = LN(Y), Z = Y + LN(hidden(Y_hat)) W_2; LN at the end"""

    source = "Wang et al. 2022 (2210.06423)"
    plain = "pre_norm"

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        gains = dict.fromkeys(("W", "W_O", "W_1", "W_2"), math.log(2 * depth) ** 0.5)
        return both(Junction(normed_read=True, inner_norm=True), gains=gains)

    def fit_(self, attention: nn.Module, ffn: nn.Module) -> None:
        W_O, W_2 = attention.W_O, getattr(ffn, "W_2", None)  # there may be no network
        attention.W_O = _Projection(W_O) if isinstance(W_O, nn.Linear) else nn.LayerNorm(self.norm_1.normalized_shape)
        if W_2 is not None:
            ffn.W_2 = _Projection(W_2)
