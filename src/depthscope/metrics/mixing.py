"""What one attention matrix P does to the tokens X it mixes (Yu & Zhang 2023, section 2.2.2)."""

import math

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_tokens
from depthscope.errors import ShapeError
from depthscope.metrics.chunks import Chunk, power_of_two
from depthscope.metrics.pattern import Pattern, pattern_of
from depthscope.registry import metric

_INVARIANT = ("token order", "rotation", "scale of X", "padding")


def _tokens_of(pattern: Pattern, X: Tensor) -> tuple[Chunk, int]:
    """The samples of X (samples, n, d) that a part of a pattern works on, and how many of its heads each has."""
    if pattern.mixed is not None and pattern.mixed[0] is X:
        return pattern.mixed[1:]
    low = pattern.first // pattern.heads
    high = (pattern.first + pattern.size - 1) // pattern.heads + 1
    heads = pattern.size // (high - low)
    x = X[low:high].detach().double()
    valid = None if pattern.mask is None else pattern.mask[::heads, :, None]
    x = x if valid is None else torch.where(valid, x, 0.0)
    scale = power_of_two(x)
    chunk = Chunk(x if scale is None else x / scale[:, None, None], valid, scale)
    pattern.mixed = (X, chunk, heads)
    return chunk, heads


def _moved(pattern: Pattern, chunk: Chunk, heads: int) -> Tensor:
    """1^T P Pi_2 X, (samples, heads, d): where attention drags the sum of tokens."""
    return pattern.received.reshape(-1, heads, pattern.m) @ chunk.Pi_2_x


def omega_of(pattern: Pattern, X: Tensor) -> Tensor:
    """omega for each head of a part, (size,)."""
    chunk, heads = _tokens_of(pattern, X)
    moved = _moved(pattern, chunk, heads).norm(dim=-1)
    return (moved / (chunk.n * chunk.mean.norm(dim=(-2, -1)))[:, None]).flatten()


def mu_of(pattern: Pattern, X: Tensor, sketch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """mu_1 and mu_2 for each head of a part, (size,) each.

    sketch (d, r) with orthonormal columns replaces the d channels by r random ones in mu_2, where P X would cost
    d / d_h times the attention itself: within a percent or so for r = 64, and ten where tokens have few directions.
    """
    chunk, heads = _tokens_of(pattern, X)
    sums = chunk.n[:, None, None] * chunk.mean  # 1^T X
    kept = pattern.received.sum(-1).reshape(-1, heads, 1) / chunk.n[:, None, None] if pattern.sink else 1.0  # P 1 = 1
    mu_1 = (kept * sums + _moved(pattern, chunk, heads)).norm(dim=-1) / sums.norm(dim=-1)
    tokens = chunk.Pi_2_x if sketch is None else chunk.Pi_2_x @ sketch
    size = tokens.abs().amax((-2, -1), keepdim=True)
    tokens = torch.where(size > 0, tokens / size, tokens)  # P may be narrower than X
    spread = tokens.to(pattern.like.dtype).mT.repeat_interleave(heads, 0)  # (size, r, n)
    mixed = torch.linalg.vector_norm(pattern.centre(pattern.image(spread)), dim=(-2, -1), dtype=torch.float64)
    mu_2 = mixed.reshape(-1, heads) / tokens.norm(dim=(-2, -1))[:, None]
    return mu_1.flatten(), mu_2.flatten()


def _parts(X: Tensor, P: Tensor, mask: Tensor | None, where: str) -> tuple[Pattern, tuple[int, ...], Tensor]:
    check_tokens(X, where=where)
    batch = tuple(X.shape[:-2])
    heads = P.ndim == X.ndim + 1
    if tuple(P.shape[: len(batch)]) != batch or P.ndim - X.ndim not in (0, 1) or P.shape[-2:] != (X.shape[-2],) * 2:
        raise ShapeError(
            f"{where}: P must be (..., n, n) or (..., h, n, n) for X (..., n, d); got P {tuple(P.shape)} and "
            f"X {tuple(X.shape)}. The batch axes come first in both."
        )
    if mask is not None:
        mask = check_mask(mask, X.shape[:-1], where=where)
    if not heads:
        P = P.unsqueeze(-3)
    pattern, _ = pattern_of(P, mask=mask, where=where)
    shape = (*batch, P.shape[-3]) if heads else batch
    return pattern, shape, X.reshape(-1, *X.shape[-2:])


@metric("attention", takes=("X", "P"), bounds=(0, math.inf), invariant=_INVARIANT, formula=omega_of)
def omega(X: Tensor, P: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How far attention moves the mean token, because some tokens receive more than others.

    omega(X, P) = |e^T P Pi_2 X| / |e^T X|,    e = 1 / sqrt(n)

    X (..., n, d), P (..., n, n) or (..., h, n, n) -> (...) or (..., h), >= 0; 0 when P is doubly stochastic or
    X is collapsed. Yu & Zhang 2023, eq. (12).
    """
    pattern, shape, tokens = _parts(X, P, mask, "omega")
    return torch.cat([omega_of(part, tokens) for part in pattern.pieces()]).reshape(shape)


@metric(
    "attention", takes=("X", "P"), parts=("mu_1", "mu_2"), bounds=(0, math.inf), invariant=_INVARIANT, formula=mu_of
)
def mu(X: Tensor, P: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What attention keeps of the common part and of the centred part of X.

    mu_i(X, P) = |Pi_i P X|_F / |Pi_i X|_F,    i = 1, 2

    X (..., n, d), P (..., n, n) or (..., h, n, n) -> two tensors (...) or (..., h). Attention makes tokens alike
    when mu_1 > mu_2; mu_2 is NaN for a collapsed X. Yu & Zhang 2023, eq. (10).
    """
    pattern, shape, tokens = _parts(X, P, mask, "mu")
    pairs = [mu_of(part, tokens) for part in pattern.pieces()]
    mu_1, mu_2 = (torch.cat(column).reshape(shape) for column in zip(*pairs, strict=True))
    return mu_1, mu_2
