"""A few massive tokens rule every sum over tokens: who they are, and how alike the others are.

Nearly every trained language model and large ViT has them: sinks and registers (Sun et al. 2024, Darcet et al. 2024).
"""

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric

MASSIVE = 5.0  # times the median norm: such a token weighs as much as 25 others
MOST = 4  # at most one token in so many is an exception; where more are large, sizes are spread and none is massive

_INVARIANT = ("token order", "scale", "rotation", "padding")


def sizes(chunk: Chunk) -> Tensor:
    """The norm of each token over the median norm of its sequence, (b, n); zero for padding."""
    norms = chunk.norms if chunk.valid is None else chunk.norms.where(chunk.valid.squeeze(-1), torch.nan)
    return (chunk.norms / norms.nanmedian(-1, keepdim=True).values).nan_to_num(0.0, posinf=0.0)


def massive(chunk: Chunk) -> Tensor:
    """Which tokens are massive, (b, n)."""
    large = chunk.once(sizes) > MASSIVE
    return large & (MOST * large.sum(-1) <= chunk.n)[:, None]


def rest(chunk: Chunk) -> Chunk:
    """The tokens that are not massive."""
    found = chunk.once(massive)
    if found.device.type == "cpu" and not found.any():  # an accelerator is not asked
        return chunk
    keep = ~found[..., None] if chunk.valid is None else chunk.valid & ~found[..., None]
    return chunk.part(keep)


def _share(chunk: Chunk) -> Tensor:
    return chunk.once(massive).sum(-1) / chunk.n


def _similarity(chunk: Chunk) -> Tensor:
    energies = chunk.once(rest).scaled_energies
    return energies.common / energies.total


def _diversity(chunk: Chunk) -> Tensor:
    energies = chunk.once(rest).scaled_energies
    return energies.centred / energies.total


@metric("state", takes=("X",), bounds=(0, 1 / MOST), invariant=_INVARIANT, formula=_share)
def massive_share(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens that are massive: far larger than the others, and few.

    massive_share(X) = |M| / n,    M = {i : |x_i| > 5 median_j |x_j|}, empty where it holds more than a quarter

    X (..., n, d) -> (...), in [0, 1/4]. The median of an even number of norms is the lower one.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.massive_share(X)), 3)
        0.0
    """
    return by_sample(_share, X, mask, where="massive_share")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_similarity)
def t_sim_rest(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token similarity of the rest: of all tokens that are not massive.

    t_sim_rest(X) = t_sim({x_i : i not in M}),    M as in massive_share

    X (..., n, d) -> (...), in [0, 1]; t_sim itself where no token is massive.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_sim_rest(X)), 3)
        0.75
    """
    return by_sample(_similarity, X, mask, where="t_sim_rest")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_diversity)
def t_div_rest(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token diversity of the rest: of all tokens that are not massive.

    t_div_rest(X) = t_div({x_i : i not in M}),    M as in massive_share

    X (..., n, d) -> (...), in [0, 1]; t_div itself where no token is massive. One token 300 times larger than the
    others makes t_div near 1, however alike those are.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_div_rest(X)), 3)
        0.25
    """
    return by_sample(_diversity, X, mask, where="t_div_rest")
