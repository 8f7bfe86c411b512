"""Halved: branches of half weight, without norms."""

from torch import Tensor

from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve


@shelve("wiring", name="halved")
class Halved(Wiring):
    """Y = X + alpha SA(X) / 2,  Z = Y + FFN(Y) / 2"""

    source = "Nobody 2026 (0000.00000)"
    plain = "post_norm"

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        Y = X + self.alpha * SA(X) / 2
        return {"Y": Y, "Z": Y + FFN(Y) / 2}
