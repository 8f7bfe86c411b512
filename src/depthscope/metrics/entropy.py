"""How widely attention spreads."""

import math

import torch
from torch import Tensor

from depthscope.metrics.pattern import Pattern, pattern_of
from depthscope.registry import metric


def entropy_of(pattern: Pattern) -> Tensor:
    """Mean row entropy for each head of a part, (size,)."""
    if pattern.tiles is not None:
        return pattern.tiles.rows.entropy.mean(-1)
    total = torch.zeros(pattern.size, dtype=torch.float64, device=pattern.device)
    for _, P in pattern.blocks():
        # log2 is several times faster than log; the clamp makes 0 log 0 = 0
        bits = pattern.scratch.take("scores", tuple(P.shape), P)
        torch.clamp_min(P, torch.finfo(P.dtype).tiny, out=bits).log2_().mul_(P)
        total = total - bits.sum(-1).double().sum(-1)
    return total * math.log(2) / pattern.count().double().squeeze(-1)


@metric("attention", takes=("P",), bounds=(0, math.inf), invariant=("token order", "padding"), formula=entropy_of)
def attention_entropy(P: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean entropy of the rows of P, in nats: log n when every token looks at all alike, 0 when at one only.

    attention_entropy(P) = -(1/n) sum_ij P_ij log P_ij

    P (..., h, n, m) -> (..., h), in [0, log m]. Near 0 is entropy collapse (Zhai et al. 2023).

    Examples:
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> round(float(ds.metrics.attention_entropy(P)), 3)
        0.911
    """
    pattern, batch = pattern_of(P, mask=mask, where="attention_entropy")
    return torch.cat([entropy_of(part) for part in pattern.pieces()]).reshape(batch)
