"""What a block does to each frequency over the tokens: along a sequence, or over the grid of an image's patches."""

import math
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import ShapeError

PREFIX = 16  # the most tokens that stand before the patches: cls, distillation, registers
TINY = 1e-300


def token_energies(X: Tensor) -> Tensor:
    """Energy of the tokens by frequency over their index.

    E(f) = (1/n) |sum_t x_t e^{-2 pi i f t / n}|^2, f and -f added

    X (..., n, d) -> (n // 2 + 1,), summed over all else. They add up to |X|_F^2; E(0) = |Pi_1 X|_F^2, so that
    hfc_lfc(X)^2 = sum_{f > 0} E(f) / E(0) for one sequence.
    """
    n = X.shape[-2]
    energies = torch.fft.fft(X.double(), dim=-2, norm="ortho").abs().square().sum(-1).reshape(-1, n).sum(0)
    bins = torch.arange(n)
    return _binned(energies, torch.minimum(bins, n - bins))


def patch_energies(X: Tensor, grid: tuple[int, int]) -> Tensor:
    """The same of patches (..., height x width, d) by the length of their 2-D frequency, rounded: (F,)."""
    height, width = grid
    if X.shape[-2] != height * width:
        raise ShapeError(
            f"patch_energies: X must be (..., {height} x {width}, d), patches row by row; got {tuple(X.shape)}. "
            "Leave out the cls token."
        )
    Y = torch.fft.fft2(X.double().unflatten(-2, grid), dim=(-3, -2), norm="ortho")
    energies = Y.abs().square().sum(-1).reshape(-1, height * width).sum(0)
    return _binned(energies, _rounded_lengths(height, width).flatten())


def _rounded_lengths(height: int, width: int) -> Tensor:
    up, along = (torch.fft.fftfreq(k, 1 / k) for k in (height, width))
    return (up[:, None].square() + along.square()).sqrt().round().long()


def _binned(energies: Tensor, bins: Tensor) -> Tensor:
    found = torch.zeros(int(bins.max()) + 1, dtype=torch.float64, device=energies.device)
    return found.index_add(0, bins.to(energies.device), energies)


def response(before: Tensor, after: Tensor) -> Tensor:
    """Energy after over energy before, for each frequency (F,); NaN where there was none."""
    return torch.where(before > TINY, after / before.clamp(min=TINY), math.nan)


def grid_in(args: tuple, kwargs: dict, n: int) -> tuple[int, int] | None:
    """The grid of patches of an image model: its first input, masks aside, is (B, channels, height, width), and its n
    tokens are a grid of that shape with a few tokens in front. None for sequences."""
    named: list[Any] = [value for name, value in kwargs.items() if "mask" not in name]
    first = next((value for value in (*args, *named) if isinstance(value, Tensor)), None)
    if first is None or first.ndim != 4:
        return None
    aspect = first.shape[-2] / first.shape[-1]
    for prefix in range(min(PREFIX, n - 1) + 1):
        width = round(math.sqrt((n - prefix) / aspect))
        height = round(width * aspect)
        if width > 1 and height > 1 and height * width == n - prefix:
            return height, width
    return None
