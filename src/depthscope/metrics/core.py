"""What is left to tell tokens apart when a few of them, and a few channels that all share, are not looked at."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics.chunk import Chunk, joined
from depthscope.metrics.chunks import by_sample
from depthscope.metrics.massive import rest
from depthscope.metrics.ordinary import central, centred_seen, directions_seen, inverse_norms, kept, ordinary
from depthscope.metrics.sums import norms, products, squared_gram, weighted_sum
from depthscope.registry import metric

TRIMMED = 8  # one token in so many may be an outlier
POINTS = 4  # that are few
LOW = 8.0  # directions: four points differ in three, and outliers may add some
SAME = 0.02  # squared distance of tokens that are the same, of the signal
NEAR = 0.1  # squared distance of tokens in one point, of the spread: some noise around a point is allowed

_INVARIANT = ("token order", "scale", "padding")


class Directions(NamedTuple):
    """Of ordinary tokens, about the central one: v_i = u_i - u_c = w_i y_i + turn_i x_c,  y_i = x_i - x_c."""

    few: Chunk
    weight: Tensor  # w_i = 1 / |x_i|, 0 of a zero token, (b, n)
    turn: Tensor  # w_i - w_c, (b, n)
    x_c: Tensor  # (b, 1, d)
    far: Tensor  # |v_i|^2, (b, n); infinite for tokens that are left out
    n: Tensor  # (b,), long


def _directions(chunk: Chunk) -> Directions:
    """In all channels. What tokens share is subtracted before squares are taken, so that of equal ones nothing is left.

    |x_i|^2 - |x_c|^2 = |y_i|^2 + 2 y_i . x_c,    |v_i|^2 = w_i w_c (|y_i|^2 - (|x_i| - |x_c|)^2)
    """
    few = chunk.once(ordinary)
    keep, w, size = kept(few), few.once(inverse_norms), few.norms
    place = central(directions_seen(few), keep)
    x_c, w_c, size_c = few.token(place), w.gather(-1, place[:, None]), size.gather(-1, place[:, None])
    sizes, dots = [], []
    for samples, _, y in few.walk(x_c):
        sizes.append(norms(y).flatten())
        dots.append(products(y, x_c[samples, 0]).flatten())
    apart = joined(sizes).view_as(size).square()
    longer = (apart + 2 * joined(dots).view_as(size)) / (size + size_c)
    nothing = (w == 0) | (w_c == 0)  # beside a zero token |v_i| is 1, or 0 where both are zero
    far = torch.where(nothing, ((w == 0) ^ (w_c == 0)).double(), w * w_c * (apart - longer.square()).clamp_min(0.0))
    turn = torch.where(nothing, w - w_c, -longer * w * w_c)
    far = far if keep is None else far.masked_fill(~keep, torch.inf)
    return Directions(few, w, turn, x_c, far, few.n.long())


def _core(chunk: Chunk) -> Tensor:
    """|Pi_2 v|_F^2 / |C| over the tokens C nearest to the central one. None is left out of fewer than 4."""
    few, weight, turn, x_c, far, n = chunk.once(_directions)
    left_out = torch.where(n >= 4, (n / TRIMMED).ceil(), 0).long()
    inner = far <= far.sort(-1).values.gather(-1, (n - left_out - 1)[:, None])  # who is as far as the last is in too
    share = inner / inner.sum(-1, keepdim=True).double()
    mean, w = (share * turn).sum(-1, keepdim=True) * x_c.squeeze(-2), share * weight
    for samples, tokens, y in few.walk(x_c):
        mean[samples] += weighted_sum(y, w[samples, tokens])
    return ((share * far.masked_fill(~inner, 0.0)).sum(-1) - mean.square().sum(-1)).clamp(0.0, 1.0)


def _same(chunk: Chunk) -> Tensor:
    found = chunk.once(_directions)
    return (found.far <= SAME).sum(-1) / found.n.double()


def _rank(chunk: Chunk) -> Tensor:
    return chunk.once(_participation)


def _participation(chunk: Chunk) -> Tensor:
    few = chunk.once(ordinary)
    share = squared_gram(few.Pi_2_x, 1 / few.scaled_energies.centred.sqrt())
    most = (few.n - 1).clamp(1, few.x.shape[-1])
    return (1 / share.clamp_min(1e-9)).clamp(torch.ones_like(most), most)


def _size(chunk: Chunk) -> Tensor:
    few = chunk.once(rest)
    return few.full_size((few.scaled_energies.centred / few.n).sqrt())


def _in_points(chunk: Chunk) -> Tensor:
    low = chunk.once(_participation) <= LOW  # of most states no sample
    if low.device.type == "cpu" and not low.any():  # an accelerator is not asked
        return torch.zeros_like(chunk.n)
    few = chunk.once(ordinary)
    z, seen, keep = few.Pi_2_x, few.once(centred_seen), kept(few)
    left = low[:, None].expand(z.shape[:-1]) if keep is None else keep & low[:, None]
    size = norms(z).square()
    near = NEAR * size.sum(-1, keepdim=True) / few.n[:, None]
    sizes = []
    for _ in range(2 * POINTS):  # some leaders may be outliers
        leader = central(seen, left)[:, None]
        z_l = z.gather(-2, leader[..., None].expand(-1, 1, z.shape[-1])).squeeze(-2)
        apart = size + size.gather(-1, leader) - 2 * products(z, z_l)
        group = left & (apart <= near)
        sizes.append(group.sum(-1))
        left = left & ~group
    largest = torch.stack(sizes).topk(POINTS, dim=0).values
    return torch.where(largest >= 2, largest, 0).sum(0) / few.n


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_core)
def t_div_core(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token diversity of the core: of directions, without massive tokens, outliers and shared massive channels.

    t_div_core(X) = t_div({u_i : i in C}),    u_i = x_i / |x_i|,  C = the 7/8 of tokens nearest to a central u_c

    X (..., n, d) -> (...), in [0, 1]; 0 when seven of eight tokens are equal. c is the token nearest to the median of 8
    channels (d > 32: of 8 fixed mixtures of all channels). Massive tokens are left out first (see massive_share), then
    channels in which the mean token has 100 times the energy of a usual channel and the tokens vary little. Of float32
    tokens it is off by about 1e-7 of itself and of the squared spread of the logarithms of their lengths.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_div_core(X)), 3)
        0.199
    """
    return by_sample(_core, X, mask, where="t_div_core")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_same)
def same_share(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens that are the same, up to a hundredth of the signal.

    same_share(X) = |{i : |u_i - u_c|^2 <= 0.02}| / n,    u_i = x_i / |x_i|,  u_c the central direction

    X (..., n, d) -> (...), in [1/n, 1]; 31/32 when 31 of 32 tokens are equal. Of ordinary tokens (see t_div_core).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.same_share(X)), 3)
        0.333
    """
    return by_sample(_same, X, mask, where="same_share")


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, formula=_rank)
def difference_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """In how many directions tokens differ: 1 when all lie on one line.

    difference_rank(X) = (tr A)^2 / tr A^2,    A = (Pi_2 X)^T Pi_2 X

    X (..., n, d) -> (...), in [1, min(n - 1, d)]: the participation ratio of what differs between ordinary tokens (see
    t_div_core). Computed from all inner products of tokens, or of channels where these are fewer; of float32 tokens
    it is off by about 1e-6 of itself.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.difference_rank(X)), 3)
        1.0
    """
    return by_sample(_rank, X, mask, where="difference_rank")


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "rotation", "padding"), formula=_size)
def difference_size(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How far tokens are from their mean, whatever they have in common.

    difference_size(X) = |Pi_2 X|_F / sqrt(n)    of all tokens that are not massive

    X (..., n, d) -> (...), >= 0: in the units of X. It stays where a common offset alone makes tokens alike.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.difference_size(X)), 3)
        0.816
    """
    return by_sample(_size, X, mask, where="difference_size")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_in_points)
def few_points(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens that sit in at most four points, where tokens differ in few directions.

    few_points(X) = (1/n) sum_g |G_g|,    G_g = tokens within |x_i - x_l|^2 <= 0.1 |Pi_2 X|_F^2 / n of a leader l

    X (..., n, d) -> (...), in [0, 1]: 1 for two clusters, 0 for unrelated tokens and for more than 8 directions. A
    leader is the central one of the tokens that are in no group yet; of eight groups the four largest count, and none
    of one token. Of ordinary tokens (see t_div_core).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.few_points(X)), 3)
        0.0
    """
    return by_sample(_in_points, X, mask, where="few_points")
