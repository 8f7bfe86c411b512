"""LayerScale: a learnable factor for each channel of a branch, small at the start (Touvron et al. 2021, 2103.17239)."""

import torch
from torch import Tensor, nn

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.design import Design
from depthscope.models.wirings.pre_norm import PreNorm
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

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return both(Junction(normed_read=True, write=first_g(depth)))

    def join_1(self, X: Tensor, A: Tensor) -> Tensor:
        return torch.add(X, self.g_1 * A, alpha=self.alpha)

    def join_2(self, Y: Tensor, F: Tensor) -> Tensor:
        return Y + self.g_2 * F
