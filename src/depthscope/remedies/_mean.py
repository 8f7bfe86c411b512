"""The mean token, over the whole sequence or over what a causal model may see."""

import torch
from torch import Tensor
from torch.nn import functional as F

MEANS = ("full", "prefix", "sink", "past")


def token_mean(X: Tensor, form: str, mask: Tensor | None = None) -> Tensor:
    """The mean token that each token may see.

    full    sum_s x_s / n                the same for every token: it shows the future
    prefix  sum_{s <= t} x_s / t         the uniform causal matrix of He & Hofmann 2023 (2311.01906)
    sink    sum_{s <= t} x_s / (t + 1)   as if a zero token stood in front: the first token is halved, not erased
    past    sum_{s < t} x_s / (t - 1)    zero for the first token

    X (..., n, d) with zeros at padding, mask (..., n) -> (..., 1, d) for full, else (..., n, d). t counts tokens
    from 1, padding not counted, on whichever side it is. O(n d).
    """
    if form == "full":
        if mask is None:
            return X.mean(-2, keepdim=True)
        return X.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None].clamp(min=1)
    here = torch.ones(X.shape[-2], dtype=torch.long, device=X.device) if mask is None else mask.long()
    total, count = X.cumsum(-2), here.cumsum(-1)
    if form == "sink":
        count = count + 1
    elif form == "past":  # shifted and not total - X, so that the token itself leaves no rounding behind
        total, count = F.pad(total[..., :-1, :], (0, 0, 1, 0)), count - here
    return total / count.clamp(min=1).unsqueeze(-1)


def running_mean(x: Tensor, form: str, mask: Tensor | None = None) -> Tensor:
    """The mean of one number a token, x (..., n) -> (..., 1) for full, else over s <= t, (..., n)."""
    return token_mean(x.unsqueeze(-1), "full" if form == "full" else "prefix", mask).squeeze(-1)
