"""One forward pass of a fixed model: what is known of it, and what it needs."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import MaskError
from depthscope.interventions.means import Stretch
from depthscope.interventions.memory import Sums


@dataclass
class Pass:
    """One forward pass: its mask (B, n), the sums of the tokens before it, and which blocks ran and were remedied."""

    mask: Tensor | None = None
    past: Sums | None = None  # None at the start of a sequence
    cached: int = 0  # tokens in the key-value cache
    window: int = 0  # the most tokens that a segment memory may hold
    arguments: dict[str, Any] = field(default_factory=dict)
    sums: Sums = field(default_factory=list)
    entered: set[str] = field(default_factory=set)
    fired: set[str] = field(default_factory=set)
    paths: ExitStack = field(default_factory=ExitStack)
    thread: int = field(default_factory=threading.get_ident)
    has_gradients: bool = field(default_factory=torch.is_grad_enabled)

    def mask_of(self, X: Tensor) -> Tensor | None:
        """The mask (B, n) of the tokens X (B, n, d), which come after those in the cache."""
        mask, n = self.mask, X.shape[-2]
        if mask is not None and mask.shape[-1] > n:
            mask = mask[:, self.cached : self.cached + n]
        if mask is not None and tuple(mask.shape) != tuple(X.shape[:-1]):
            raise MaskError(
                f"the padding mask must have one entry for each token, {tuple(X.shape[:-1])}; "
                f"got {tuple(mask.shape)}. Give sequences of equal length."
            )
        return mask

    def stretch(self, mask: Tensor | None, group: Any) -> Stretch:
        """The tokens at hand in the next call of the remedy, whose mask this is."""
        return Stretch(mask, None if self.past is None else self.past[len(self.sums)], group, self.window)
