"""What one attention matrix P does to the tokens X it mixes (Yu & Zhang 2023, section 2.2.2)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_tokens
from depthscope.errors import ShapeError
from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import chunk_of
from depthscope.metrics.pattern import HELD, Pattern, pattern_of
from depthscope.metrics.rows_of_softmax import STRIP
from depthscope.registry import metric

ROUNDED = 1e-4  # of |R|_F^2 tr G: below it rounding in float32 may take the fourth digit
_INVARIANT = ("token order", "rotation", "scale of X", "padding")


class Mixed(NamedTuple):
    """Samples of X (samples, n, d) that a part of a pattern works on, and how many of its heads each has."""

    X: Tensor
    chunk: Chunk
    heads: int
    moved: Tensor  # 1^T P Pi_2 X, (samples, heads, d): where attention drags the sum of tokens


def _mixed(pattern: Pattern, X: Tensor) -> Mixed:
    if pattern.mixed is not None and pattern.mixed.X is X:
        return pattern.mixed
    low = pattern.first // pattern.heads
    high = (pattern.first + pattern.size - 1) // pattern.heads + 1
    heads = pattern.size // (high - low)
    valid = None if pattern.mask is None else pattern.mask[::heads, :, None]
    chunk = chunk_of(X[low:high].detach(), valid)
    received = (pattern.received - 1).reshape(-1, heads, pattern.m)  # 1^T Pi_2 = 0: what is no sum stays as exact
    pattern.mixed = Mixed(X, chunk, heads, (received.to(chunk.Pi_2_x.dtype) @ chunk.Pi_2_x).double())
    return pattern.mixed


def omega_of(pattern: Pattern, X: Tensor) -> Tensor:
    """omega for each head of a part, (size,)."""
    _, chunk, _, moved = _mixed(pattern, X)
    return (moved.norm(dim=-1) / (chunk.n * chunk.mean.norm(dim=(-2, -1)))[:, None]).flatten()


def mu_of(pattern: Pattern, X: Tensor) -> tuple[Tensor, Tensor]:
    """mu_1 and mu_2 for each head of a part, (size,) each."""
    mixed = _mixed(pattern, X)
    size = mixed.chunk.scaled_energies.centred.sqrt()
    tokens = _seen(pattern, mixed)
    Z = (tokens / size.to(tokens.dtype)[:, None, None]).to(pattern.like.dtype)
    return _mu_1(pattern, mixed), _mixed_size(pattern, Z, mixed.heads)


def _seen(pattern: Pattern, mixed: Mixed) -> Tensor:
    """Tokens (samples, n, d) whose image has the centred part of P X: where P 1 = 1 the mean token adds nothing."""
    chunk = mixed.chunk
    if not pattern.sink:
        return chunk.Pi_2_x
    tokens = chunk.Pi_2_x + chunk.mean.to(chunk.Pi_2_x.dtype)
    return tokens if chunk.valid is None else tokens.masked_fill(~chunk.valid, 0.0)


def sampled_mu_of(pattern: Pattern, X: Tensor, channels: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """mu_1, and mu_2 in a sample of channels with its standard error; (size,) each. channels (d, r): orthonormal.

    mu_2^2 = sum_c y_c / sum_c x_c,    x_c = |Pi_2 X q_c|^2,  y_c = |Pi_2 P X q_c|^2    over the r channels q_c

    The error is that of a ratio of two means over r draws.
    """
    mixed = _mixed(pattern, X)
    unit, heads = mixed.chunk.scaled_energies.centred.sqrt()[:, None, None], mixed.heads
    Z, seen = (tokens.double() @ channels / unit for tokens in (mixed.chunk.Pi_2_x, _seen(pattern, mixed)))
    rows = seen.to(pattern.like.dtype).mT.repeat_interleave(heads, 0)  # (size, r, n)
    x = Z.square().sum(-2).repeat_interleave(heads, 0)  # (size, r)
    y = torch.linalg.vector_norm(pattern.centre(pattern.image(rows)), dim=-1, dtype=torch.float64).square()
    ratio = y.sum(-1) / x.sum(-1)
    r = x.shape[-1]
    spread = (y - ratio[:, None] * x).square().sum(-1) / (r * (r - 1))
    mu_2 = ratio.sqrt()
    return (_mu_1(pattern, mixed), mu_2), spread.sqrt() / x.mean(-1) / (2 * mu_2)


def _mu_1(pattern: Pattern, mixed: Mixed) -> Tensor:
    n = mixed.chunk.n[:, None, None]
    sums = n * mixed.chunk.mean  # 1^T X
    kept = pattern.received.sum(-1).reshape(-1, mixed.heads, 1) / n if pattern.sink else 1.0  # P 1 = 1
    return ((kept * sums + mixed.moved).norm(dim=-1) / sums.norm(dim=-1)).flatten()


def _mixed_size(pattern: Pattern, Z: Tensor, heads: int) -> Tensor:
    """|Pi_2 P Z|_F for tokens Z (samples, n, d), (size,), float64.

    With more channels than tokens by their inner products G = Z Z^T, |R Z|_F^2 = <R^T R, G> for R = Pi_2 P, which delta
    asks for too. Rounding counts against |R|_F^2 tr G there, so heads with far less take the long way.
    """
    n, d = Z.shape[-2:]
    if d <= n or pattern.size * n * n > HELD:
        return _by_channels(pattern, Z, heads)
    N, G = pattern.once(gram), Z @ Z.mT
    energy = G.diagonal(dim1=-2, dim2=-1).sum(-1).repeat_interleave(heads)
    squares = torch.linalg.vecdot(N.unflatten(0, (-1, heads)).flatten(-2), G.flatten(-2)[:, None]).double().flatten()
    size = N.diagonal(dim1=-2, dim2=-1).sum(-1).double()
    rounded = squares < ROUNDED * energy * size
    mixed = squares.clamp_min(0.0).sqrt()
    if rounded.any():
        mixed = torch.where(rounded, _by_channels(pattern, Z, heads), mixed)
    return mixed


def in_one(pattern: Pattern) -> Tensor:
    """P of few tokens in one piece, (size, n, m)."""
    cut, P = next(pattern.blocks())
    if cut.stop == pattern.n:
        return P
    return torch.cat([P.clone() for _, P in pattern.blocks()], -2)  # a block of rows is soon overwritten


def centred_rows(pattern: Pattern) -> Tensor:
    """Pi_2 P, (size, n, m), of few tokens. Centred twice: what rounding leaves of the mean adds up over all rows."""
    P = in_one(pattern)
    mean = (pattern.received / pattern.count()).to(P.dtype)[:, None]
    R = _kept(pattern, torch.sub(P, mean, out=pattern.scratch.take("R", tuple(P.shape), P)))
    left = R.sum(-2, keepdim=True) / pattern.count()[..., None].to(P.dtype)
    return _kept(pattern, R.sub_(left))


def _kept(pattern: Pattern, R: Tensor) -> Tensor:
    return R if pattern.mask is None else R.masked_fill_(~pattern.mask[..., None], 0.0)


def gram(pattern: Pattern) -> Tensor:
    """R^T R for R = Pi_2 P, (size, m, m), of few tokens: what lies below the diagonal strips mirrors what is above."""
    R = pattern.once(centred_rows)
    N = pattern.scratch.take("R^T R", (pattern.size, pattern.m, pattern.m), R)
    for c in range(0, pattern.m, STRIP):
        own = slice(c, c + STRIP)
        torch.bmm(R[..., own].mT, R[..., c:], out=N[:, own, c:])
        N[:, own, :c] = N[:, :c, own].mT
    return N


def _by_channels(pattern: Pattern, Z: Tensor, heads: int) -> Tensor:
    """|Pi_2 P Z|_F for tokens Z (samples, n, d), (size,), by all rows of P Z."""
    if pattern.tiles is not None:
        moved = pattern.centre(pattern.image(Z.mT.repeat_interleave(heads, 0)))
        return torch.linalg.vector_norm(moved, dim=(-2, -1), dtype=torch.float64)
    share = (pattern.received / pattern.count()).unflatten(0, (-1, heads))
    mean = (share @ Z.double()).to(Z.dtype)[..., None, :]  # the mean row of P Z
    squares = torch.zeros(pattern.size, dtype=torch.float64, device=Z.device)
    for cut, seen, P in pattern.strips():
        rows = torch.bmm(P.unflatten(0, (-1, heads)).flatten(1, 2), Z[:, seen]).unflatten(1, (heads, -1))
        rows = rows.sub_(mean).flatten(0, 1)
        if pattern.mask is not None:
            rows.masked_fill_(~pattern.mask[:, cut, None], 0.0)
        squares += torch.linalg.vector_norm(rows, dim=(-2, -1)).double().square()
    return squares.sqrt()


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

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> round(float(ds.metrics.omega(X, P)), 3)
        0.094
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

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> P = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.6, 0.2], [0.3, 0.3, 0.4]])  # (n, n), rows sum to 1
        >>> tuple(round(float(value), 3) for value in ds.metrics.mu(X, P))
        (1.069, 0.231)
    """
    pattern, shape, tokens = _parts(X, P, mask, "mu")
    pairs = [mu_of(part, tokens) for part in pattern.pieces()]
    mu_1, mu_2 = (torch.cat(column).reshape(shape) for column in zip(*pairs, strict=True))
    return mu_1, mu_2
