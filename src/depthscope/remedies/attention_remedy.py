"""Remedies that change how attention mixes: they act on P, on the values, or on queries and keys."""

from typing import ClassVar

import torch
from torch import Tensor

from depthscope.errors import ShapeError, UsageError
from depthscope.remedies.remedy import Remedy
from depthscope.traces.attention import SdpaCall
from depthscope.traces.watcher import unwatched


class AttentionRemedy(Remedy):
    """P, v -> what attention gives back. Acts at the site "attn", on any model whose attention is seen.

    A remedy writes `pattern` (P -> P'), or `mix` where it needs the values too, or `aim` where it changes queries and
    keys. All are causal-safe: U, the uniform matrix, has the zeros of the mask, so under a causal one it is the prefix
    mean. In a block with several attentions the first is meant, which is the self-attention.
    """

    at = "attn"
    scale: ClassVar[float | None] = None  # of the scores, where it is not the model's own
    carries: ClassVar[bool] = False  # whether blocks use what another one computed, so that none may run again alone

    def __init__(self, learnable: bool = False, heads: int = 1) -> None:
        super().__init__()
        self.learnable, self.heads = learnable, self._count("heads", heads)

    @property
    def causal_safe(self) -> bool:
        return True

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        """The matrix that takes P's place, (..., n, n); U is uniform over what each query may see."""
        return P

    def mix(self, P: Tensor, v: Tensor) -> Tensor:
        """What attention gives back for values v (..., n, d_h) and the new pattern, its dropout included."""
        return P @ v

    def aim(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys that take the place of q and k."""
        return q, k

    def begin(self) -> None:
        """A forward pass begins, or has ended: forget what was kept of it."""

    def from_qkv(self, q: Tensor, k: Tensor, v: Tensor, call: SdpaCall) -> Tensor:
        if self.heads > 1:
            self.heads_of(q)
        P = call.probabilities(*self.aim(q, k), self.scale)
        new = call.dropout(self._replaced(P, call.visible(P)))  # in this order: what dropout removes is not a mask
        with unwatched():
            return self.mix(new, v)

    def from_pattern(self, P: Tensor, visible: Tensor) -> Tensor:
        own = type(self)
        if self.heads > 1:
            self.heads_of(P)
        if own.mix is not AttentionRemedy.mix or own.aim is not AttentionRemedy.aim:
            raise UsageError(
                f"{own.__name__} needs the queries, keys and values; this model takes the softmax by itself. "
                'Load it with attn_implementation="sdpa".'
            )
        return self._replaced(P, visible)

    def _replaced(self, P: Tensor, visible: Tensor) -> Tensor:
        """The new pattern in the dtype of P, worked on in float32 or wider."""
        wide = P.float() if P.dtype in (torch.float16, torch.bfloat16) else P
        with unwatched():
            return self.pattern(wide, uniform(visible, wide)).to(P.dtype)

    def heads_of(self, P: Tensor) -> int:
        """The number of heads of P (B, h, n, n), or of q (B, h, n, d_h); those learned apart must be as many."""
        if P.ndim < 4 or self.heads not in (1, P.shape[-3]):
            raise ShapeError(
                f"{type(self).__name__}: attention must show its heads as (B, {self.heads if self.heads > 1 else 'h'}, "
                f"n, n) to treat them apart; got {tuple(P.shape)}. Give heads= as many as the model has, or 1."
            )
        return P.shape[-3]

    def _per_head(self, argument: str, value: float) -> float | Tensor:
        return self._strength(argument, value, self.heads, 1, 1)


def uniform(visible: Tensor, P: Tensor) -> Tensor:
    """U_ij = 1[i may see j] / #{j: i may see j}: 1 1^T / n without a mask, the prefix mean under a causal one."""
    seen = visible.to(P.dtype)
    return seen / seen.sum(-1, keepdim=True).clamp_min(1)


def identity(P: Tensor) -> Tensor:
    """I (n, n) in the dtype of P."""
    return torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
