"""Even steps: post-norm whose branches are divided by the depth, and whose norms have nothing to learn.

One update of Adam moves every entry of every matrix by the rate, in all blocks the same way, so what L blocks do to
their output adds up: L times the factor of a branch. The factor c / L keeps that equal at any depth; 1 / sqrt(L) does
not. A gain of a norm multiplies the stream, and no factor of a branch makes it milder: 2 L gains change the output by
2 L rates at one update. So these norms have no gains and no biases. docs/notebook/training.md has the numbers.
"""

from torch import nn

from depthscope.junctions import Junction, Junctions, both
from depthscope.models.design import Design
from depthscope.models.wirings.depth_scaled import DepthScaled
from depthscope.registry import shelve

C = 4.0  # all blocks together write as much as this many classic ones


@shelve("wiring", name="even_steps")
class EvenSteps(DepthScaled):
    """Y_1 = X + c alpha SA(X) / L,  Y_2 = N(Y_1),  Y_3 = Y_2 + c FFN(Y_2) / L,  Y_4 = N(Y_3);  N: LN without weights"""

    source = "ours; norms without weights and steps of 1 / L as in nGPT, Loshchilov et al. 2024 (2410.01131)"
    plain = "post_norm"
    off = {"scale": 1.0}

    def __init__(self, design: Design, index: int) -> None:
        super().__init__(design, index)
        self.norm_1, self.norm_2 = (nn.LayerNorm(design.d, elementwise_affine=False) for _ in range(2))

    @staticmethod
    def junctions(depth: int, index: int) -> Junctions:
        return both(Junction(write=min(1.0, C / depth), normed_sum=True))
