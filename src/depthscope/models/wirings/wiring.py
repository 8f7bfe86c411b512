"""What a wiring is: how one block joins its branches, its residuals and its norms."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from depthscope.junctions import Junctions
from depthscope.models.design import Design, State

Branch = Callable[[Tensor], Tensor]


class Wiring(nn.Module):
    """A wiring writes `steps`: named states in the order in which they arise, the last being the block's output.

    It declares its source, the plain wiring that it mends, with which values of its scalars it is that one, and its
    `junctions`, from which forecasts by sizes follow. It owns the norms and scalars of its block; `index` counts blocks
    from 1, for wirings that depend on depth. `reads` is the letter of the state that attention reads. `beginning` comes
    before the first block, `ending` after the last. `fit_` changes the branches themselves.

    Where more than one stream runs from block to block, `beginning` returns a tuple, the main stream first, steps takes
    that tuple for X, `streams` names the steps that are the further streams, and `ending` takes them all. A scan reads
    the main stream.
    """

    source: ClassVar[str]  # paper, year
    plain: ClassVar[str | None] = None  # the wiring to compare it with, which takes its place to switch it off
    off: ClassVar[dict[str, float]] = {}  # attributes of every block with which it computes as the plain one
    no_law: ClassVar[str] = ""  # why its blocks cannot be forecast by their sizes, and what to do instead
    reads = "X"
    streams: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        if "junctions" not in vars(cls):  # a subclass joins otherwise: what its parent declared does not hold for it
            cls.junctions = staticmethod(Wiring.junctions)  # type: ignore[method-assign]

    def __init__(self, design: Design, index: int) -> None:
        super().__init__()
        self.alpha = design.alpha
        self.declared = self.junctions(design.depth, index)

    @staticmethod
    def junctions(depth: int, index: int, /) -> Junctions | None:
        """The block of this index as plain data; None where there is no such description."""
        return None

    def steps(self, X: Any, SA: Branch, FFN: Branch) -> dict[str, Tensor]:
        raise NotImplementedError

    def keep_1(self, X: Tensor) -> Tensor:
        """The stream that goes past attention."""
        return X

    def keep_2(self, Y: Tensor) -> Tensor:
        """The stream that goes past the network."""
        return Y

    def join_1(self, X: Tensor, A: Tensor) -> Tensor:
        """The stream that was kept, and what attention gives."""
        return torch.add(X, A, alpha=self.alpha)

    def join_2(self, Y: Tensor, F: Tensor) -> Tensor:
        """The stream that was kept, and what the network gives."""
        return Y + F

    def forward(self, X: State, SA: Branch, FFN: Branch) -> State:
        steps = self.steps(X, SA, FFN)
        out = list(steps.values())[-1]
        return (out, *(steps[letter] for letter in self.streams)) if self.streams else out

    def gain(self, role: str) -> float:
        """The factor on a freshly drawn matrix, by its letter."""
        return self.declared.gains.get(role, 1.0) if self.declared else 1.0

    def fit_(self, attention: nn.Module, ffn: nn.Module) -> None:
        """Change the branches of a new block in place, where a wiring reaches inside them."""

    @staticmethod
    def beginning(design: Design) -> nn.Module:
        return nn.Identity()

    @staticmethod
    def ending(design: Design) -> nn.Module:
        return nn.Identity()
