"""Mix-LN: the first quarter of the blocks in post-norm order, the rest in pre-norm (Li et al. 2024, 2412.13795)."""

from torch import Tensor, nn

from depthscope.junctions import Junctions
from depthscope.models.design import Design
from depthscope.models.wirings.post_norm import PostNorm
from depthscope.models.wirings.pre_norm import PreNorm
from depthscope.models.wirings.wiring import Branch, Wiring
from depthscope.registry import shelve

SHARE = 0.25  # the paper's a: 3 blocks of 12


def _placed(depth: int, index: int) -> type[PostNorm | PreNorm]:
    return PostNorm if index <= SHARE * depth else PreNorm


@shelve("wiring", name="mix_ln")
class MixLN(Wiring):
    """blocks l <= depth / 4 as post_norm, the others as pre_norm; one more LN after the last block"""

    source = "Li et al. 2024 (2412.13795)"
    plain = "pre_norm"

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.wired = _placed(design.depth, index)(design, index)
        self.reads = self.wired.reads

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return _placed(depth, index).junctions(depth, index)

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        return self.wired.steps(X, SA, FFN)

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.LayerNorm(design.d)
