"""What a wiring is: how one block joins its branches, its residuals and its norms."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from depthscope.models.design import Design, State

Branch = Callable[[Tensor], Tensor]


class Wiring(nn.Module):
    """A wiring writes `steps`: named states in the order in which they arise, the last being the block's output.

    It declares its source, the plain wiring that it mends, and with which values of its scalars it is that one. It owns
    the norms and scalars of its block; `index` counts blocks from 1, for wirings that depend on depth. `reads` is the
    letter of the state that attention reads. `beginning` comes before the first block, `ending` after
    the last. `gain` multiplies the matrices where they are drawn, `fit_` changes the branches themselves.

    Where more than one stream runs from block to block, `beginning` returns a tuple, the main stream first, steps takes
    that tuple for X, `streams` names the steps that are the further streams, and `ending` takes them all. A scan reads
    the main stream.
    """

    source: ClassVar[str]  # paper, year
    plain: ClassVar[str | None] = None  # the wiring to compare it with, which takes its place to switch it off
    off: ClassVar[dict[str, float]] = {}  # attributes of every block with which it computes as the plain one
    reads = "X"
    streams: tuple[str, ...] = ()

    def __init__(self, design: Design, index: int) -> None:
        super().__init__()
        self.alpha = design.alpha

    def steps(self, X: Any, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        raise NotImplementedError

    def forward(self, X: State, SA: Branch, FFN: Branch) -> State:
        steps = self.steps(X, SA, FFN)
        out = list(steps.values())[-1]
        return (out, *(steps[letter] for letter in self.streams)) if self.streams else out

    def gain(self, role: str) -> float:
        """The factor on a freshly drawn matrix, by its letter."""
        return 1.0

    def fit_(self, attention: nn.Module, ffn: nn.Module) -> None:
        """Change the branches of a new block in place, where a wiring reaches inside them."""

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return nn.Identity()

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.Identity()
