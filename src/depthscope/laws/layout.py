"""Where tokens lie in the tensors of a model: (B, n, d), (n, B, d), (B, h, w, d), or channels first, (B, d, n)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """axis of the tokens, 1 or 0 for (n, B, d). channels_first: (B, d, n) or (B, d, h, w)."""

    axis: int = 1
    channels_first: bool = False

    def tokens(self, x: Tensor) -> Tensor:
        """As (B, n, d)."""
        if self.channels_first:
            return x.flatten(2).mT
        return x.transpose(0, 1) if self.axis == 0 else x.flatten(1, -2)

    def laid_out(self, X: Tensor, shape: torch.Size) -> Tensor:
        """Tokens (B, n, d) in a tensor of this shape."""
        if self.channels_first:
            return X.mT.reshape(shape)
        return (X.transpose(0, 1) if self.axis == 0 else X).reshape(shape)

    def sizes(self, shape: torch.Size) -> tuple[int, int, int]:
        """(B, n, d) of a tensor."""
        if self.channels_first:
            return shape[0], shape[2:].numel(), shape[1]
        if self.axis == 0:
            return shape[1], shape[0], shape[-1]
        return shape[0], shape[1:-1].numel(), shape[-1]


def has_channels_first(x: Tensor, block: nn.Module) -> bool:
    """Whether the weights of a block are of the size of the second axis of its tokens and not of the last."""
    sizes = {p.shape[min(1, p.ndim - 1)] for p in block.parameters() if p.ndim in (1, 2)}
    return x.ndim in (3, 4) and x.shape[1] in sizes and x.shape[-1] not in sizes
