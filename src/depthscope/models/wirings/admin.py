"""Admin: post-norm with a learnable weight on the skip, set by one profiling pass (Liu et al. 2020, 2004.08249)."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.junctions import POST_NORM, everywhere
from depthscope.models.design import Design
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.registry import shelve

if TYPE_CHECKING:
    from depthscope.models.block import Block


@shelve("wiring", name="admin")
class Admin(PostNorm):
    """Y_1 = omega_1 * X + alpha SA(X),  Y_2 = LN(Y_1),  Y_3 = omega_2 * Y_2 + FFN(Y_2),  Y_4 = LN(Y_3)"""

    source = "Liu et al. 2020 (2004.08249)"
    plain = "post_norm"
    off = {"omega_1": 1.0, "omega_2": 1.0}
    junctions = staticmethod(everywhere(POST_NORM))  # omega = 1 until it is profiled

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.omega_1, self.omega_2 = nn.Parameter(torch.ones(design.d)), nn.Parameter(torch.ones(design.d))

    def keep_1(self, X: Tensor) -> Tensor:
        return self.omega_1 * X

    def keep_2(self, Y: Tensor) -> Tensor:
        return self.omega_2 * Y


@torch.no_grad()
def admin_profile_(blocks: Iterable["Block"], X: Tensor) -> list[float]:
    """Set every omega from one pass of the tokens X (..., n, d) through the blocks (a Transformer); returns the values.

    omega_1 = 1,  omega_{i+1}^2 = Var(omega_i x_i) + Var f_i(x_i), i counting branches: for x of variance 1 this is
    omega_i^2 = 1 + sum_{j<i} Var f_j. As in the authors' code, a branch is measured with the omegas before it set.
    """
    omega, values = 1.0, []
    for block in blocks:
        wiring = block.wiring
        if not isinstance(wiring, Admin):
            raise UsageError(
                f"admin_profile_: blocks must be wired as admin; got {type(wiring).__name__}. "
                'Build the model with wiring="admin".'
            )
        for weight, norm, f, factor in (
            (wiring.omega_1, wiring.norm_1, block.attention, wiring.alpha),
            (wiring.omega_2, wiring.norm_2, block.ffn, 1.0),
        ):
            weight.fill_(omega)
            values.append(omega)
            kept, branch = omega * X, factor * f(X)
            omega = float(kept.double().var(unbiased=False) + branch.double().var(unbiased=False)) ** 0.5
            X = norm(kept + branch)
    return values
