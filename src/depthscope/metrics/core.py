"""What is left to tell tokens apart when a few of them, and a few channels that all share, are not looked at."""

import math

import torch
from torch import Tensor

from depthscope.metrics.chunks import Chunk, by_sample
from depthscope.metrics.massive import rest
from depthscope.metrics.sketch import sketch
from depthscope.registry import metric

TRIMMED = 8  # one token in so many may be an outlier
CENTRAL = 8  # channels in which a median is taken
POINTS = 4  # that are few
LOW = 8.0  # directions: four points differ in three, and outliers may add some
SAME = 0.02  # squared distance of tokens that are the same, of the signal
NEAR = 0.1  # squared distance of tokens in one point, of the spread: some noise around a point is allowed

_INVARIANT = ("token order", "scale", "padding")


def _core(chunk: Chunk) -> Tensor:
    found, inner = chunk.once(sketch), _nearest(chunk)
    kept = Chunk(torch.where(inner[..., None], found.directions, 0.0), inner[..., None])
    return (kept.scaled_energies.centred / kept.n).clamp_max(1.0)


def _nearest(chunk: Chunk) -> Tensor:
    """All but one in TRIMMED tokens, (b, n): those nearest to the central token. None is left out of fewer than 4."""
    far, n = chunk.once(_far), chunk.once(sketch).n
    left_out = torch.where(n >= 4, (n / TRIMMED).ceil(), 0).long()
    return far <= far.sort(-1).values.gather(-1, (n - left_out - 1)[:, None])  # who is as far as the last is in too


def _far(chunk: Chunk) -> Tensor:
    """Squared distance of each direction from the central one, (b, n); infinite for tokens that are left out."""
    u, keep = chunk.once(sketch).directions, chunk.once(sketch).keep
    return torch.where(keep, _squared_distance(u, _central(u, keep)), torch.inf)


def _same(chunk: Chunk) -> Tensor:
    return (chunk.once(_far) <= SAME).sum(-1) / chunk.once(sketch).n.double()


def _central(u: Tensor, keep: Tensor) -> Tensor:
    """The token nearest to the median of its first few channels, (b, 1, k): one of the majority, where there is one."""
    few = u[..., :CENTRAL]
    median = torch.where(keep[..., None], few, torch.nan).mT.nanmedian(-1).values.unsqueeze(-2).nan_to_num(0.0)
    far = torch.where(keep, _squared_distance(few, median), torch.inf)
    return u.gather(-2, far.argmin(-1)[:, None, None].expand(-1, 1, u.shape[-1]))


def _squared_distance(u: Tensor, centre: Tensor) -> Tensor:
    return (u - centre).square().sum(-1)


def _rank(chunk: Chunk) -> Tensor:
    return chunk.once(_participation)


def _participation(chunk: Chunk) -> Tensor:
    found = chunk.once(sketch)
    S, k, d = found.centred, found.centred.shape[-1], chunk.x.shape[-1]
    C = S.mT @ S
    share = C.square().sum((-2, -1)) / C.diagonal(dim1=-2, dim2=-1).sum(-1).square()
    if d > k:  # E tr B^2 = (1 + 1/k) tr A^2 + (tr A)^2 / k,  E (tr B)^2 = (tr A)^2 + 2 tr A^2 / k
        share = (share - 1 / k) / (1 + 1 / k - 2 * share / k)
    most = (found.n - 1).clamp(1, d).double()
    return (1 / share.clamp_min(1e-9)).clamp(torch.ones_like(most), most)


def _size(chunk: Chunk) -> Tensor:
    few = chunk.once(rest)
    return few.full_size((few.scaled_energies.centred / few.n).sqrt())


def _in_points(chunk: Chunk) -> Tensor:
    found = chunk.once(sketch)
    low = chunk.once(_participation) <= LOW  # of most states no sample
    if not low.any():
        return torch.zeros_like(chunk.n)
    S, left, n = found.centred, found.keep & low[:, None], found.n.double()
    near = NEAR * S.square().sum((-2, -1)) / n  # (b,)
    sizes = []
    for _ in range(2 * POINTS):  # some leaders may be outliers
        group = left & (_squared_distance(S, _central(S, left)) <= near[:, None])
        sizes.append(group.sum(-1))
        left = left & ~group
    largest = torch.stack(sizes).topk(POINTS, dim=0).values
    return torch.where(largest >= 2, largest, 0).sum(0) / n


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_core)
def t_div_core(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token diversity of the core: of directions, without massive tokens, outliers and shared massive channels.

    t_div_core(X) = t_div({u_i : i in C}),    u_i = x_i / |x_i|,  C = the 7/8 of tokens nearest to a central u_c

    X (..., n, d) -> (...), in [0, 1]; 0 when seven of eight tokens are equal. c is the token nearest to the median of 8
    channels. Massive tokens are left out first (see massive_share), then channels in which the mean token has 100 times
    the energy of a usual channel and the tokens vary little. Estimated in 32 random channels, exact for d <= 32.
    """
    return by_sample(_core, X, mask, where="t_div_core")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_same)
def same_share(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens that are the same, up to a hundredth of the signal.

    same_share(X) = |{i : |u_i - u_c|^2 <= 0.02}| / n,    u_i = x_i / |x_i|,  u_c the central direction

    X (..., n, d) -> (...), in [1/n, 1]; 31/32 when 31 of 32 tokens are equal. Of ordinary tokens (see t_div_core).
    """
    return by_sample(_same, X, mask, where="same_share")


@metric("state", takes=("X",), bounds=(1, math.inf), invariant=_INVARIANT, formula=_rank)
def difference_rank(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """In how many directions tokens differ: 1 when all lie on one line.

    difference_rank(X) = (tr A)^2 / tr A^2,    A = (Pi_2 X)^T Pi_2 X

    X (..., n, d) -> (...), in [1, min(n - 1, d)]: the participation ratio of what differs between ordinary tokens (see
    t_div_core). Estimated in 32 random channels without bias in tr A^2, exact for d <= 32.
    """
    return by_sample(_rank, X, mask, where="difference_rank")


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "rotation", "padding"), formula=_size)
def difference_size(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """How far tokens are from their mean, whatever they have in common.

    difference_size(X) = |Pi_2 X|_F / sqrt(n)    of all tokens that are not massive

    X (..., n, d) -> (...), >= 0: in the units of X. It stays where a common offset alone makes tokens alike.
    """
    return by_sample(_size, X, mask, where="difference_size")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_in_points)
def few_points(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The share of tokens that sit in at most four points, where tokens differ in few directions.

    few_points(X) = (1/n) sum_g |G_g|,    G_g = tokens within |x_i - x_l|^2 <= 0.1 |Pi_2 X|_F^2 / n of a leader l

    X (..., n, d) -> (...), in [0, 1]: 1 for two clusters, 0 for unrelated tokens and for more than 8 directions. A
    leader is the central one of the tokens that are in no group yet; of eight groups the four largest count, and none
    of one token. Of ordinary tokens (see t_div_core).
    """
    return by_sample(_in_points, X, mask, where="few_points")
