"""What one attention matrix P does to the tokens X it mixes (Yu & Zhang 2023, section 2.2.2)."""

import math

import torch
from torch import Tensor

from depthscope._checks import check_mask, check_tokens
from depthscope._registry import metric
from depthscope.errors import ShapeError
from depthscope.metrics._chunks import centre
from depthscope.metrics._pattern import Pattern, pattern_of

_INVARIANT = ("token order", "rotation", "scale of X", "padding")


def _tokens_of(pattern: Pattern, X: Tensor) -> tuple[Tensor, Tensor]:
    """Pi_2 X (size, n, d) and the mean token (size, 1, d) for each head of a part, float64; X (samples, n, d)."""
    sample = torch.arange(pattern.first, pattern.first + pattern.size) // pattern.heads
    low, high = int(sample[0]), int(sample[-1]) + 1
    valid = None
    if pattern.mask is not None:  # one mask for each sample, read at the first head that belongs to it
        valid = torch.stack([pattern.mask[int((sample == s).nonzero()[0])] for s in range(low, high)])[..., None]
    x = X[low:high].detach().double()
    Pi_2_X, mean = centre(x if valid is None else torch.where(valid, x, 0.0), valid)
    return Pi_2_X[sample - low], mean[sample - low]


def omega_of(pattern: Pattern, X: Tensor) -> Tensor:
    """omega for each head of a part, (size,)."""
    Pi_2_X, mean = _tokens_of(pattern, X)
    n = pattern.count().double().squeeze(-1)
    received = pattern.column_sums()  # 1^T P
    moved = (received[:, None, :] @ Pi_2_X).norm(dim=(-2, -1))  # |1^T P Pi_2 X|
    return moved / (n * mean.norm(dim=(-2, -1)))


def mu_of(pattern: Pattern, X: Tensor, sketch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """mu_1 and mu_2 for each head of a part, (size,) each.

    sketch (d, r) with orthonormal columns replaces the d channels by r random ones in mu_2, where P X would cost
    d / d_h times the attention itself: an unbiased estimate, within a percent or so for r = 128.
    """
    Pi_2_X, mean = _tokens_of(pattern, X)
    n = pattern.count().double()[..., None]
    common = n * mean + pattern.column_sums()[:, None, :] @ Pi_2_X  # 1^T P X, because P 1 = 1
    mu_1 = common.norm(dim=(-2, -1)) / (n * mean).norm(dim=(-2, -1))
    if sketch is not None:
        Pi_2_X = Pi_2_X @ sketch
    mixed = pattern.centre(pattern.times(Pi_2_X.to(next(pattern.blocks())[1].dtype)))
    mu_2 = torch.linalg.vector_norm(mixed, dim=(-2, -1), dtype=torch.float64) / Pi_2_X.norm(dim=(-2, -1))
    return mu_1, mu_2


def _parts(X: Tensor, P: Tensor, mask: Tensor | None, where: str) -> tuple[Pattern, tuple[int, ...], Tensor]:
    check_tokens(X, where=where)
    batch = tuple(X.shape[:-2])
    heads = P.ndim == X.ndim + 1
    if tuple(P.shape[: len(batch)]) != batch or P.ndim > X.ndim + 1 or P.shape[-1] != X.shape[-2]:
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
    return torch.cat([omega_of(part, tokens) for part in pattern.parts()]).reshape(shape)


@metric(
    "attention",
    takes=("X", "P"),
    parts=("mu_1", "mu_2"),
    bounds=(0, math.inf),
    invariant=_INVARIANT,
    formula=mu_of,
)
def mu(X: Tensor, P: Tensor, *, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """What attention keeps of the common part and of the centred part of X.

    mu_i(X, P) = |Pi_i P X|_F / |Pi_i X|_F,    i = 1, 2

    X (..., n, d), P (..., n, n) or (..., h, n, n) -> two tensors (...) or (..., h). Attention makes tokens alike
    when mu_1 > mu_2; mu_2 is NaN for a collapsed X. Yu & Zhang 2023, eq. (10).
    """
    pattern, shape, tokens = _parts(X, P, mask, "mu")
    pairs = [mu_of(part, tokens) for part in pattern.parts()]
    mu_1, mu_2 = (torch.cat(column).reshape(shape) for column in zip(*pairs, strict=True))
    return mu_1, mu_2
