"""What a wiring is: how one block joins its branches, its residuals and its norms."""

from collections.abc import Callable

from torch import Tensor, nn

from depthscope.models.design import Design

Branch = Callable[[Tensor], Tensor]


class Wiring(nn.Module):
    """A wiring writes `steps`: named states in the order in which they arise, the last being the block's output.

    It owns the norms and scalars of its block; `index` counts blocks from 1, for wirings that depend on depth. `reads`
    is the letter of the state that attention reads. `ending` is what follows the last block.
    """

    reads = "X"

    def __init__(self, design: Design, index: int) -> None:
        super().__init__()
        self.alpha = design.alpha

    def steps(self, X: Tensor, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        raise NotImplementedError

    def forward(self, X: Tensor, SA: Branch, FFN: Branch) -> Tensor:
        return list(self.steps(X, SA, FFN).values())[-1]

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.Identity()
