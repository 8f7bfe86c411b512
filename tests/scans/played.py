"""A model that plays given states: block l adds what leads from state l to state l + 1. A scan measures just these."""

from itertools import pairwise

import torch
from torch import Tensor, nn

import depthscope as ds


class Step(nn.Module):
    """x + (next - x), in the stream's own dtype."""

    def __init__(self, difference: Tensor) -> None:
        super().__init__()
        self.difference = nn.Parameter(difference)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.difference


class Played(nn.Module):
    def __init__(self, states: list[Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Step(b - a) for a, b in pairwise(states))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def played(states: list[Tensor], **options) -> ds.Scan:
    """The scan of a model that plays these states (B, n, d)."""
    return ds.scan(Played(states).eval(), states[0], blocks="blocks.*", attention=False, **options)


def towards(end: Tensor, depth: int = 8) -> list[Tensor]:
    """Unrelated tokens that become `end` (B, n, d): what is not in the end shrinks by 4 a block."""
    start = torch.randn(end.shape, dtype=end.dtype)
    return [end + (start - end) * 4.0**-block for block in range(depth)] + [end]


def gaussian(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
