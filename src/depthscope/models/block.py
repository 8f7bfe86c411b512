"""One Transformer block in the letters of Algorithm 1 (Yu & Zhang 2023, section 2.1)."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.models.design import Design, State
from depthscope.models.segment_memory import Recall
from depthscope.registry import lookup

Branch = Callable[[Tensor], Tensor]


class SelfAttention(nn.Module):
    """SA(X) = [P_1 X W_1 ... P_h X W_h] (W_O),    P_k from the queries X W_q and keys X W_k of head k.

    X (..., n, d) -> (..., n, d). Where P itself is not asked for, softmax attention is computed without it.

    Examples:
        >>> attention = ds.models.SelfAttention(ds.models.Design(d=8, h=2))
        >>> attention(torch.randn(3, 4, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        d, bias = design.d, design.bias
        self.h, self.causal, self.formula = design.h, design.causal, design.attention
        self.W_q, self.W_k, self.W = (nn.Linear(d, d, bias=bias) for _ in range(3))
        self.W_O = nn.Linear(d, d, bias=bias) if design.output else None
        if self.formula == "sinkhorn" and self.causal:
            warnings.warn(
                "sinkhorn attention: the only doubly stochastic matrix under a causal mask is the identity; "
                "the tokens of this model do not mix. Use another formula for a causal model.",
                stacklevel=2,
            )

    def _split(self, X: Tensor) -> Tensor:
        return X.unflatten(-1, (self.h, -1)).transpose(-2, -3)  # (..., h, n, d/h)

    def _pattern(self, q: Tensor, k: Tensor) -> Tensor:
        return lookup("attention", self.formula)(q, k, self.causal).softmax(-1)

    def pattern(self, X: Tensor) -> Tensor:
        """The attention matrices P (..., h, n, n)."""
        return self._pattern(self._split(self.W_q(X)), self._split(self.W_k(X)))

    def forward(self, X: Tensor) -> Tensor:
        q, k, v = (self._split(W(X)) for W in (self.W_q, self.W_k, self.W))
        if self.formula == "softmax":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            mixed = self._pattern(q, k) @ v
        joined = mixed.transpose(-2, -3).flatten(-2)  # (..., n, d)
        return joined if self.W_O is None else self.W_O(joined)

    def extra_repr(self) -> str:
        return f"attention={self.formula}, h={self.h}, causal={self.causal}"


class Block(nn.Module):
    """One block: attention and feed-forward, joined by a wiring. X (..., n, d) -> (..., n, d).

    Where a wiring has further streams, they follow X and come back after it: block(X, D) -> (X, D). recall is for an
    attention that remembers earlier tokens. Dropout acts on what the branches give.

    Examples:
        >>> block = ds.models.Block(ds.models.Design(depth=2, d=8, h=2))
        >>> block(torch.randn(3, 4, 8)).shape
        torch.Size([3, 4, 8])
    """

    gradient_checkpointing = False  # whether training keeps the input alone and computes the rest again backwards

    def __init__(
        self,
        design: Design,
        index: int = 1,
        attention: Callable[[Design], nn.Module] = SelfAttention,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention: Any = attention(design)
        self.ffn = lookup("activation", design.activation)(design)
        self.wiring = lookup("wiring", design.wiring)(design, index)
        self.wiring.fit_(self.attention, self.ffn)
        self.h, self.weights, self.dropout = design.h, design.weights, dropout
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the matrices anew, by the law of the design."""
        for path, matrix in self.matrices():
            self.draw_(path, matrix.weight, matrix.bias)

    @torch.no_grad()
    def draw_(self, path: str, weight: Tensor, bias: Tensor | None) -> None:
        """Fill one matrix by the law of the design and the gain of the wiring; leading axes are independent copies."""
        role = path.rpartition(".")[-1]
        lookup("weight law", self.weights)(weight, bias, role, self.h)
        weight.mul_(self.wiring.gain(role))

    def matrices(self) -> list[tuple[str, nn.Linear]]:
        """The weight matrices with their names; the last part of a name is the paper's letter."""
        return [(name, module) for name, module in self.named_modules() if isinstance(module, nn.Linear)]

    def steps(self, X: Tensor, *streams: Tensor) -> dict[str, Tensor]:
        """The states inside the block by their letters, in the order in which they arise; the last is the output."""
        return self.wiring.steps((X, *streams) if streams else X, *self._branches(None))

    def forward(self, X: Tensor, *streams: Tensor, recall: Recall | None = None) -> State:
        return self.wiring((X, *streams) if streams else X, *self._branches(recall))

    def _branches(self, recall: Recall | None) -> tuple[Branch, Branch]:
        """Attention and feed-forward network as the wiring calls them."""
        SA: Branch = self.attention if recall is None else lambda X: self.attention(X, recall)
        if not self.dropout:
            return SA, self.ffn
        p, on = self.dropout, self.training
        return lambda X: F.dropout(SA(X), p, on), lambda Y: F.dropout(self.ffn(Y), p, on)
