"""The mean token, over the whole sequence or over what a causal model may see, also of sequences that come in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.interventions.group import earlier_in_group, sum_over_group

MEANS = ("full", "prefix", "sink", "past")


@dataclass(frozen=True, eq=False)
class Running:
    """The sum (..., 1, d) and the count (..., 1) of the tokens up to some place.

    tokens: the last of them by themselves (..., M, d), where the next stretch counts no more than these.
    """

    total: Tensor
    count: Tensor
    tokens: Tensor | None = None

    @classmethod
    def over(cls, tokens: Tensor) -> "Running":
        """Of a window of tokens (..., M, d)."""
        count = torch.full((1,), tokens.shape[-2], dtype=torch.long, device=tokens.device)
        return cls(tokens.sum(-2, keepdim=True), count, tokens)


@dataclass(eq=False)
class Stretch:
    """The part of a sequence that is at hand: which of its tokens count, what came before, who holds the rest.

    past: what the tokens before these left, one Running for each causal mean, in the order the means are taken; None
    at the start of a sequence. now: the same after these tokens. group: the processes that hold the sequence, in order.
    window: the most tokens that the next stretch may see one by one, where attention forgets those before.
    """

    mask: Tensor | None = None  # (..., n), True where a token counts
    past: Sequence[Running] | None = None
    group: Any = None
    window: int = 0
    now: list[Running] = field(default_factory=list)

    def before(self, own: Running) -> Running | None:
        """Sum and count of the tokens before this stretch, whose own sum and count are given; None at the start."""
        if self.group is not None:
            return Running(earlier_in_group(own.total, self.group), earlier_in_group(own.count, self.group))
        if self.past is None:
            return None
        if len(self.now) >= len(self.past):
            raise UsageError(
                "a running mean must count the tokens in the segment memory, which was filled by a form without "
                "running means, or with fewer of them. Start anew with memory=None."
            )
        return self.past[len(self.now)]

    def note(self, X: Tensor, earlier: Running | None, total: Tensor, count: Tensor) -> None:
        """Keep what the next stretch needs of the tokens X and of those before; total and count are over both."""
        tokens = None
        if self.window:
            held = X if earlier is None or earlier.tokens is None else torch.cat([earlier.tokens, X], -2)
            tokens = held[..., -self.window :, :].detach().clone()
        self.now.append(Running(total.clone(), count.clone(), tokens))  # not views: X would be kept


def token_mean(X: Tensor, form: str, stretch: Stretch) -> Tensor:
    """The mean token that each token may see.

    full    sum_s x_s / n                the same for every token: it shows the future
    prefix  sum_{s <= t} x_s / t         the uniform causal matrix of He & Hofmann 2023 (2311.01906)
    sink    sum_{s <= t} x_s / (t + 1)   as if a zero token stood in front: the first token is halved, not erased
    past    sum_{s < t} x_s / (t - 1)    zero for the first token

    X (..., n, d) with zeros at padding -> (..., 1, d) for full, else (..., n, d). t counts tokens from 1, padding not
    counted, on whichever side it is. O(n d).
    """
    mask, group = stretch.mask, stretch.group
    if form == "full" and mask is None and group is None:
        return X.mean(-2, keepdim=True)
    here = torch.ones(X.shape[-2], dtype=torch.long, device=X.device) if mask is None else mask.long()
    if form == "full":
        total, count = X.sum(-2, keepdim=True), here.sum(-1, keepdim=True)
        if group is not None:
            total, count = sum_over_group(total, group), sum_over_group(count, group)
        return total / count.clamp(min=1).unsqueeze(-1)
    total, count = X.cumsum(-2), here.cumsum(-1)
    earlier = stretch.before(Running(total[..., -1:, :], count[..., -1:]))
    if earlier is not None:
        total, count = total + earlier.total, count + earlier.count
    stretch.note(X, earlier, total[..., -1:, :], count[..., -1:])
    if form == "sink":
        count = count + 1
    elif form == "past":  # shifted and not total - X, so that the token itself leaves no rounding behind
        first = torch.zeros_like(total[..., :1, :]) if earlier is None else earlier.total.expand_as(total[..., :1, :])
        total, count = torch.cat([first, total[..., :-1, :]], -2), count - here
    return total / count.clamp(min=1).unsqueeze(-1)


def running_mean(x: Tensor, form: str, stretch: Stretch) -> Tensor:
    """The mean of one number a token, x (..., n) -> (..., 1) for full, else over s <= t, (..., n)."""
    return token_mean(x.unsqueeze(-1), "full" if form == "full" else "prefix", stretch).squeeze(-1)
