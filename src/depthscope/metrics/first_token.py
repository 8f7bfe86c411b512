"""Collapse of a causal model has a direction: towards the token that only sees itself (Wu et al. 2024)."""

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric


def _towards_first(chunk: Chunk) -> Tensor:
    start = torch.zeros_like(chunk.n, dtype=torch.long)[:, None]  # (b, 1)
    if chunk.valid is not None:
        start = chunk.valid.squeeze(-1).int().argmax(-1, keepdim=True)
    along = chunk.along(chunk.first) / chunk.norms.gather(-1, start)  # (b, n)
    share, size = (v.square().scatter(-1, start, 0.0).sum(-1) for v in (along, chunk.norms))
    return (share / size).clamp_max(1.0)


@metric("state", takes=("X",), bounds=(0, 1), invariant=("scale", "rotation", "padding"), formula=_towards_first)
def first_token_similarity(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of all later tokens that lies along the first token.

    first_token_similarity(X) = sum_{t>=2} (x_t . x_1)^2 / (|x_1|^2 sum_{t>=2} |x_t|^2)

    X (..., n, d) -> (...), in [0, 1]; about 1/d for unrelated tokens, 1 when all lie on the line of x_1, NaN when x_1
    or all others are zero. Pure causal attention drives it to 1: P^k -> 1 e_1^T. The first token is the first that is
    no padding.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.first_token_similarity(X)), 3)
        0.286
    """
    return by_sample(_towards_first, X, mask, where="first_token_similarity")
