"""Peri-LN: norms before and after each branch, of the embedding, and at the end (Kim et al. 2025, 2502.02732).

The block is that of sandwich; the norm of the embedding makes the difference. The paper's norm may be RMSNorm; here it
is LN as in all wirings, so that they are compared with one norm.
"""

from dataclasses import replace

from torch import nn

from depthscope.junctions import Junctions
from depthscope.models.design import Design
from depthscope.models.wirings.sandwich import Sandwich
from depthscope.registry import shelve


@shelve("wiring", name="peri_ln")
class PeriLN(Sandwich):
    """X_hat = LN(X), A = LN(SA(X_hat)), Y = X + alpha A, Y_hat = LN(Y), F = LN(FFN(Y_hat)), Z = Y + F; LN both ends"""

    source = "Kim et al. 2025 (2502.02732)"
    plain = "pre_norm"

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return replace(Sandwich.junctions(depth, index), normed_input=True)

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return nn.LayerNorm(design.d)
