"""Many layers X -> X + A X H without overflow: what the tokens share and what differs, each with its own logarithm.

Equal tokens stay equal (A 1 = 1), so that Pi_2 X moves by itself, Pi_2 X -> Pi_2 X + Pi_2 A (Pi_2 X) H, and only the
mean token is fed by both. Kept apart, 2,000 layers lose no digits, however small one part becomes beside the other.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor

from depthscope.checks import check_stochastic, check_tokens
from depthscope.errors import ShapeError, UsageError


@dataclass(frozen=True, eq=False)
class Asymptotics:
    """Logarithms for the states 0 ... depth, (..., depth + 1), and what was measured at the chosen depths, (..., k).

    Examples:
        >>> A, H = torch.full((4, 4), 0.25), 0.5 * torch.eye(3)
        >>> found = ds.theory.asymptotics(torch.eye(4)[:, :3], A, H, depths=(2, 8))
        >>> found.log_rest.shape, found.rank_one_distance.shape
        (torch.Size([9]), torch.Size([2]))
    """

    depths: tuple[int, ...]
    log_common: Tensor  # log |Pi_1 X|_F
    log_rest: Tensor  # log |Pi_2 X|_F
    log_constant: Tensor  # log |y| of y -> y (I + H): the constant part alone, fed by nothing else
    rank_one_distance: Tensor  # (..., k): |X - its best rank-one matrix|_F / |X|_F, down to rounding
    turn: Tensor  # (..., k): the angle between X and the state before, up to sign

    @property
    def log_hfc_lfc(self) -> Tensor:
        """log(|Pi_2 X| / |Pi_1 X|) of all states, (..., depth + 1)."""
        return self.log_rest - self.log_common

    @property
    def hfc_lfc(self) -> Tensor:
        """High over low token frequencies at the chosen depths, (..., k); 0 when all tokens are equal."""
        return self.log_hfc_lfc[..., list(self.depths)].exp()

    @property
    def angle(self) -> Tensor:
        """The angle between X and states of equal tokens at the chosen depths, radians, in [0, pi / 2]."""
        return self.hfc_lfc.atan()

    @property
    def stable_rank(self) -> Tensor:
        """|X|_F^2 / |X|_2^2 at the chosen depths, (..., k)."""
        return 1 / (1 - self.rank_one_distance.square())

    @property
    def exponents(self) -> tuple[Tensor, Tensor]:
        """Lyapunov exponents of the constant part and of the rest, (...) each: log growth for each layer.

        Slopes over the second half of the layers, where the start is forgotten.
        """
        return _slope(self.log_constant), _slope(self.log_rest)


def asymptotics(
    X: Tensor,
    A: Tensor | Iterable[Tensor],
    H: Tensor | Iterable[Tensor],
    *,
    depths: Sequence[int] = (12, 24, 48, 2000),
    residual: bool = True,
) -> Asymptotics:
    """Follow X -> X + sum_h A_h X H_h, or without the residual X -> sum_h A_h X H_h, to the last of the depths.

    X (..., n, d). A (..., n, n) or (..., heads, n, n), rows that sum to 1; H (..., d, d) or (..., heads, d, d). A
    tensor is the same in all layers; anything else that is iterated over gives one for each layer (a list, a
    generator, itertools.cycle). A and H without batch axes serve the whole batch.

    With the exponents c of the constant part and r of the rest, tokens grow alike (hfc_lfc -> 0, like
    exp(-(c - r) depth)) exactly when c > r, for almost every X; for one A and one H these are
    layer_spectrum's constant and rest. Dovonon et al. 2024, section 3; changing A and H, and heads, are ours.

    Examples:
        >>> A, H = torch.full((4, 4), 0.25), 0.5 * torch.eye(3)  # uniform attention, H of positive eigenvalues
        >>> found = ds.theory.asymptotics(torch.eye(4)[:, :3], A, H, depths=(2, 8))
        >>> (found.log_common - found.log_rest)[[2, 8]]  # tokens grow alike
        tensor([0.2616, 2.6944], dtype=torch.float64)
    """
    where = "asymptotics"
    check_tokens(X, where=where)
    if not bool(X.isfinite().all()):
        raise UsageError(f"{where}: X must be finite; got NaN or infinity. Find the block where it first appears.")
    marks = _checked_depths(depths, where)
    state, layers = _State(X.detach().double()), _layers(A, H, X, where)
    logs, distances, turns = [state.logs()], {}, {}
    if 0 in marks:
        distances[0], turns[0] = state.rank_one_distance(), torch.zeros_like(state.s_m)
    for depth in range(1, max(marks) + 1):
        A_l, H_l = _next(layers, depth, max(marks), where)
        before = state.whole() if depth in marks else None
        state.step(A_l, H_l, 1.0 if residual else 0.0)
        logs.append(state.logs())
        if before is not None:
            distances[depth], turns[depth] = state.rank_one_distance(), _angle(before, state.whole())
    log_common, log_rest, log_constant = torch.stack(logs, -1)
    distance, turn = (torch.stack([kept[depth] for depth in marks], -1) for kept in (distances, turns))
    return Asymptotics(marks, log_common, log_rest, log_constant, distance, turn)


class _State:
    """X = exp(s_m) 1 m^T + exp(s_Z) Z with 1^T Z = 0 and |m| = |Z| = 1, and the constant part exp(s_y) y alone."""

    def __init__(self, X: Tensor) -> None:
        self.n = X.shape[-2]
        zero = X.new_zeros(X.shape[:-2])
        mean = X.mean(-2)
        self.m, self.s_m = _unit(mean, zero, 1)
        self.Z, self.s_Z = _unit(X - mean.unsqueeze(-2), zero, 2)
        self.y, self.s_y = self.m, self.s_m

    def step(self, A: Tensor, H: Tensor, skip: float) -> None:
        """One layer: A (..., heads, n, n), H (..., heads, d, d)."""
        mixed = A @ self.Z.unsqueeze(-3)  # (..., heads, n, d)
        mean = mixed.mean(-2, keepdim=True)
        H_sum = H.sum(-3)
        s = torch.maximum(self.s_m, self.s_Z)
        s = torch.where(s.isneginf(), 0.0, s)
        own = skip * self.m + _times(self.m, H_sum)
        fed = (mean @ H).sum(-3).squeeze(-2)  # what uneven attention makes of differences
        m = own * (self.s_m - s).exp().unsqueeze(-1) + fed * (self.s_Z - s).exp().unsqueeze(-1)
        self.m, self.s_m = _unit(m, s, 1)
        Z = skip * self.Z + ((mixed - mean) @ H).sum(-3)
        self.Z, self.s_Z = _unit(Z - Z.mean(-2, keepdim=True), self.s_Z, 2)
        self.y, self.s_y = _unit(skip * self.y + _times(self.y, H_sum), self.s_y, 1)

    def logs(self) -> Tensor:
        """log |Pi_1 X|_F, log |Pi_2 X|_F and log |y|, (3, ...)."""
        return torch.stack([self.s_m + 0.5 * math.log(self.n), self.s_Z, self.s_y])

    def whole(self) -> Tensor:
        """X in n + 1 rows, sqrt(n) m and Z, of norm about 1: all inner products and singular values are those of X."""
        s = torch.maximum(self.s_m, self.s_Z)
        top = math.sqrt(self.n) * self.m * (self.s_m - s).exp().unsqueeze(-1)
        return torch.cat([top.unsqueeze(-2), self.Z * (self.s_Z - s).exp()[..., None, None]], -2)

    def rank_one_distance(self) -> Tensor:
        X = self.whole()
        gone = ~X.isfinite().all(-1).all(-1)  # no state is left; LAPACK would refuse the whole batch
        s = torch.linalg.svdvals(torch.where(gone[..., None, None], 0.0, X)).square()
        return torch.where(gone, math.nan, (s[..., 1:].sum(-1) / s.sum(-1)).sqrt())


def _unit(x: Tensor, s: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """x with norm 1 over its last axes, and s + log of the norm it had; zeros stay zeros."""
    size = torch.linalg.vector_norm(x, dim=tuple(range(-axes, 0)))
    return x / torch.where(size > 0, size, 1.0)[(...,) + (None,) * axes], s + size.log()


def _times(row: Tensor, M: Tensor) -> Tensor:
    return (row.unsqueeze(-2) @ M).squeeze(-2)


def _angle(X: Tensor, Y: Tensor) -> Tensor:
    """Between lines, with all digits where it is small."""
    X, Y = (M / torch.linalg.vector_norm(M, dim=(-2, -1), keepdim=True) for M in (X, Y))
    sign = torch.where((X * Y).sum((-2, -1), keepdim=True) < 0, -1.0, 1.0)
    return 2 * (torch.linalg.vector_norm(X - sign * Y, dim=(-2, -1)) / 2).clamp(max=1).asin()


def _slope(logs: Tensor) -> Tensor:
    half = (logs.shape[-1] - 1) // 2
    return (logs[..., -1] - logs[..., half]) / (logs.shape[-1] - 1 - half)


def _layers(
    A: Tensor | Iterable[Tensor], H: Tensor | Iterable[Tensor], X: Tensor, where: str
) -> Iterator[tuple[Tensor, Tensor]]:
    """A (..., heads, n, n) and H (..., heads, d, d) of every layer, checked; fixed ones only once."""
    if isinstance(A, Tensor) and isinstance(H, Tensor):
        yield from repeat(_with_heads(A, H, X, where))
    each_A = repeat(A) if isinstance(A, Tensor) else A
    each_H = repeat(H) if isinstance(H, Tensor) else H
    for A_l, H_l in zip(each_A, each_H, strict=False):
        yield _with_heads(A_l, H_l, X, where)


def _next(layers: Iterator[tuple[Tensor, Tensor]], depth: int, last: int, where: str) -> tuple[Tensor, Tensor]:
    try:
        return next(layers)
    except StopIteration:
        raise UsageError(
            f"{where}: A and H must last for all {last} layers; they ended after {depth - 1}. "
            "Give itertools.cycle(...) to go round, or smaller depths."
        ) from None


def _with_heads(A: Tensor, H: Tensor, X: Tensor, where: str) -> tuple[Tensor, Tensor]:
    """A (..., heads, n, n) and H (..., heads, d, d) in float64, or an error."""
    batch, (n, d) = tuple(X.shape[:-2]), X.shape[-2:]
    heads = A.shape[-3] if A.ndim == X.ndim + 1 else 1
    for M, name, k in [(A, "A", n), (H, "H", d)]:
        if tuple(M.shape) not in {(k, k), (*batch, k, k), (*batch, heads, k, k)}:
            raise ShapeError(
                f"{where}: {name} must be (..., {k}, {k}) or (..., heads, {k}, {k}) for X {tuple(X.shape)}; got A "
                f"{tuple(A.shape)} and H {tuple(H.shape)}. The batch axes are X's, and both have the same heads."
            )
    if (A.ndim == X.ndim + 1) != (H.ndim == X.ndim + 1) and heads > 1:
        raise ShapeError(
            f"{where}: A and H must have the same heads; got A {tuple(A.shape)} and H {tuple(H.shape)}. "
            "Give one W_V W_O for each head."
        )
    check_stochastic(A, where=where)
    if not bool(H.isfinite().all()):
        raise UsageError(f"{where}: H must be finite; got NaN or infinity. Find the block where it first appears.")
    A, H = (M.detach().double() for M in (A, H))
    return (A if A.ndim == X.ndim + 1 else A.unsqueeze(-3)), (H if H.ndim == X.ndim + 1 else H.unsqueeze(-3))


def _checked_depths(depths: Sequence[int], where: str) -> tuple[int, ...]:
    marks = tuple(int(depth) for depth in depths)
    if not marks or min(marks) < 0 or max(marks) < 1:
        raise UsageError(
            f"{where}: depths must be counts of layers, one at least above 0; got {marks}. (12, 24) will do."
        )
    return marks
