"""A model that plays given states: block l adds what leads from state l to state l + 1. A scan measures just these."""

import math
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


def alike(B: int, n: int, d: int, t_div: float) -> Tensor:
    """Tokens with about this t_div: a common vector, and differences."""
    return gaussian(B, 1, d) + math.sqrt(t_div) * gaussian(B, n, d)


def common_and_apart(B: int, n: int, d: int) -> tuple[Tensor, Tensor]:
    """A common vector and differences of the same energy: with sqrt(t) of the latter t_div is t / (1 + t)."""
    base, apart = gaussian(B, 1, d), gaussian(B, n, d)
    apart -= apart.mean(1, keepdim=True)
    return base, apart * n**0.5 * base.norm(dim=(1, 2), keepdim=True) / apart.norm(dim=(1, 2), keepdim=True)
