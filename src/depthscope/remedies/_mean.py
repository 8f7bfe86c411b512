"""The mean token, over the whole sequence or over what a causal model may see, also of sequences that come in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.remedies._group import earlier_in_group, sum_over_group

MEANS = ("full", "prefix", "sink", "past")


@dataclass(frozen=True, eq=False)
class Running:
    """The sum (..., 1, d) and the count (..., 1) of the tokens up to some place."""

    total: Tensor
    count: Tensor


@dataclass(eq=False)
class Stretch:
    """The part of a sequence that is at hand: which of its tokens count, what came before, who holds the rest.

    past: what the tokens before these left, one Running for each causal mean, in the order the means are taken; empty
    at the start of a sequence. now: the same after these tokens. group: the processes that hold the sequence, in order.
    """

    mask: Tensor | None = None  # (..., n), True where a token counts
    past: Sequence[Running] = ()
    group: Any = None
    now: list[Running] = field(default_factory=list)

    def before(self, own: Running) -> Running | None:
        """Sum and count of the tokens before this stretch, whose own sum and count are given; None at the start."""
        if self.group is not None:
            return Running(earlier_in_group(own.total, self.group), earlier_in_group(own.count, self.group))
        return self.past[len(self.now)] if self.past else None


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
    stretch.now.append(Running(total[..., -1:, :].clone(), count[..., -1:].clone()))  # not a view: X would be kept
    if form == "sink":
        count = count + 1
    elif form == "past":  # shifted and not total - X, so that the token itself leaves no rounding behind
        first = torch.zeros_like(total[..., :1, :]) if earlier is None else earlier.total.expand_as(total[..., :1, :])
        total, count = torch.cat([first, total[..., :-1, :]], -2), count - here
    return total / count.clamp(min=1).unsqueeze(-1)


def running_mean(x: Tensor, form: str, stretch: Stretch) -> Tensor:
    """The mean of one number a token, x (..., n) -> (..., 1) for full, else over s <= t, (..., n)."""
    return token_mean(x.unsqueeze(-1), "full" if form == "full" else "prefix", stretch).squeeze(-1)
