"""A stack of blocks: the L-layer Transformer of Yu & Zhang 2023, section 2.1."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from depthscope.errors import ShapeError
from depthscope.models.block import Block, SelfAttention
from depthscope.models.design import Design, design_of, streams_of
from depthscope.models.segment_memory import Recall
from depthscope.registry import lookup


class Transformer(nn.Module):
    """The wiring's beginning, the blocks one after another, the wiring's ending. X (..., n, d) -> (..., n, d).

    recalls: one for each block, where their attention remembers earlier tokens.

    Examples:
        >>> design = ds.models.Design(depth=2, d=8, h=2)
        >>> ds.models.Transformer(design)(torch.randn(3, 4, 8)).shape  # (B, n, d)
        torch.Size([3, 4, 8])
    """

    def __init__(
        self, design: Design, attention: Callable[[Design], nn.Module] = SelfAttention, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.design = design
        wiring = lookup("wiring", design.wiring)
        self.beginning = wiring.beginning(design)
        self.blocks = nn.ModuleList(Block(design, index + 1, attention, dropout) for index in range(design.depth))
        self.ending = wiring.ending(design)

    def forward(self, X: Tensor, recalls: Sequence[Recall] | None = None) -> Tensor:
        if X.ndim < 2 or X.shape[-1] != self.design.d or not X.is_floating_point():
            raise ShapeError(
                f"transformer: X must be embedded tokens (..., n, {self.design.d}) of floating point; "
                f"got {tuple(X.shape)} {X.dtype}. Embed ids first, or build the model with another d=."
            )
        streams = streams_of(self.beginning(X))
        for index, block in enumerate(self.blocks):
            recall = {} if recalls is None else {"recall": recalls[index]}
            streams = streams_of(self._ran(block, *streams, **recall))
        return self.ending(*streams)

    def _ran(self, block: Any, *streams: Tensor, **recall: Recall) -> Any:
        """What a block gives. A checkpoint is around all of it, its hooks too: remedies act again when it runs again"""
        if getattr(block, "gradient_checkpointing", False) and self.training and torch.is_grad_enabled():
            return checkpoint(block, *streams, use_reentrant=False, **recall)  # type: ignore[arg-type]
        return block(*streams, **recall)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.blocks)


def classic(depth: int = 12, d: int = 256, h: int = 8, **choices: Any) -> Transformer:
    """The classic Transformer encoder on embedded tokens (B, n, d), at random initialisation.

    Choices by keyword: q, alpha, wiring, attention, activation, weights, causal, output, bias (see Design).

    Examples:
        >>> ds.models.classic(depth=2, d=8, h=2)(torch.randn(2, 4, 8)).shape
        torch.Size([2, 4, 8])
    """
    return Transformer(design_of("classic", depth=depth, d=d, h=h, **choices))
