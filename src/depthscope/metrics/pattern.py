"""An attention matrix P that is never larger in memory than it has to be.

A Pattern answers products with P, P^T and Pi_2. It holds P when that is small, and otherwise computes tiles, or blocks
of rows, anew from q and k for every product, so that no n x n tensor ever exists.
"""

import math
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_stochastic, check_tokens
from depthscope.errors import ShapeError
from depthscope.metrics.rows_of_softmax import STRIP, Rows, scores_of, softmax_rows
from depthscope.metrics.scratch import Scratch
from depthscope.metrics.tiles import Scores, Tiles

HELD = 1 << 22  # elements of P kept at a time, 16 MiB in float32: larger pieces leave the cache and cost more
PIECE = 1 << 19  # elements of small P measured at a time: enough for few calls, and not far from the cache
ENOUGH = 16  # heads, from which on more in one piece save no calls worth having

Made = TypeVar("Made")


class Pattern:
    """P of `size` heads (batch and head axes flattened), n queries and m keys; mask (size, n) or None."""

    def __init__(
        self,
        rows: Rows,
        size: int,
        n: int,
        m: int,
        *,
        mask: Tensor | None,
        causal: bool | None,
        heads: int,
        device: torch.device,
        scratch: Scratch | None = None,
        sink: bool = False,
        scores: Scores | None = None,
    ) -> None:
        self.scores = scores  # where P is softmax(q k^T) and nothing else, q and k of these heads
        self.sink = sink  # rows sum to less than one: the rest went to a sink that is no token
        self.rows, self.size, self.n, self.m = rows, size, n, m
        self.mask, self.causal, self.heads, self.device = mask, causal, heads, device
        self.scratch = scratch or Scratch()
        self.first = 0  # index of this part's first head in the whole pattern
        self.leak = 0.0  # largest share of a row that falls on padding; taken out by renormalising
        self._whole: Tensor | None = None
        self.mixed: Any = None  # the tokens it was last asked about, kept for the next question
        self._made: dict[Callable[[Pattern], Any], Any] = {}

    def once(self, make: "Callable[[Pattern], Made]") -> "Made":
        """make(self), computed at the first call and kept: what several metrics share."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def pieces(self) -> Iterator["Pattern"]:
        """Split into whole samples, or heads of one sample, so that each part's P may be held where one head's can."""
        one = self.n * self.m
        step = max(1, min(HELD // one, max(ENOUGH, PIECE // one)))
        step = step // self.heads * self.heads or next(s for s in range(step, 0, -1) if self.heads % s == 0)
        for i in range(0, self.size, step):
            yield self._slice(i, min(i + step, self.size))

    def _slice(self, i: int, j: int) -> "Pattern":
        part = Pattern(
            lambda b, c, r, s, scratch: self.rows(i + b, i + c, r, s, scratch),
            j - i,
            self.n,
            self.m,
            mask=None if self.mask is None else self.mask[i:j],
            causal=self.causal,
            heads=self.heads,
            device=self.device,
            scratch=self.scratch,
            sink=self.sink,
            scores=None if self.scores is None else self.scores.of_heads(i, j),
        )
        part.first = self.first + i
        return part

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """P in blocks of rows, (size, rows, m) each, one block when P may be held. A block lives until the next."""
        if self._whole is None and self.size * self.n * self.m <= HELD:
            self._whole = self._masked(self.rows(0, self.size, 0, self.n, self.scratch), slice(0, self.n))
        if self._whole is not None:
            yield slice(0, self.n), self._whole
            return
        step = max(1, HELD // (self.size * self.m))
        for r in range(0, self.n, step):
            cut = slice(r, min(r + step, self.n))
            yield cut, self._masked(self.rows(0, self.size, cut.start, cut.stop, self.scratch), cut)

    @cached_property
    def tiles(self) -> Tiles | None:
        """Products by tiles, where P is too large to be held and nothing but q and k makes it."""
        small = self.size * self.n * self.m <= HELD
        return None if small or self.scores is None or self.mask is not None else Tiles(self.scores, self.scratch)

    def held(self) -> Tensor:
        """The whole of P, (size, n, m), as it was given or computed: padding is left as it is."""
        return self.rows(0, self.size, 0, self.n, self.scratch)

    def _masked(self, P: Tensor, cut: slice) -> Tensor:
        """Rows of padding are zero; the others are probabilities over the tokens that count."""
        if self.mask is None:
            return P
        if self.n != self.m:  # cross-attention: the mask is that of the queries
            return torch.where(self.mask[:, cut, None], P, 0.0)
        given = P.sum(-1, keepdim=True) if self.sink else 1.0
        P = torch.where(self.mask[:, cut, None] & self.mask[:, None, :], P, 0.0)
        weight = P.sum(-1, keepdim=True) / given
        on_tokens = weight[self.mask[:, cut]]
        if on_tokens.numel():
            self.leak = max(self.leak, float((1 - on_tokens).max()))
        return torch.where(self.mask[:, cut, None], P / weight, 0.0)

    def count(self) -> Tensor:
        """Tokens that count, (size, 1)."""
        if self.mask is None:
            return torch.full((self.size, 1), float(self.n), device=self.device)
        return self.mask.sum(-1, keepdim=True).float()

    def centre(self, U: Tensor) -> Tensor:
        """Pi_2 u for the rows u of U (size, r, n): the mean over the tokens that count is taken out."""
        if self.mask is None:
            return U - U.mean(-1, keepdim=True)
        keep = self.mask[:, None, :]
        mean = torch.where(keep, U, 0.0).sum(-1, keepdim=True) / keep.sum(-1, keepdim=True)
        return torch.where(keep, U - mean, 0.0)

    def strips(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """P in parts (rows, columns, P there), which leave out most of what a P that is said to be causal has not."""
        for cut, P in self.blocks():
            step = max(STRIP, -(-self.n // 4)) if self.causal else cut.stop - cut.start
            for r in range(cut.start, cut.stop, step):
                s = min(r + step, cut.stop)
                seen = slice(0, min(s, self.m) if self.causal else self.m)
                yield slice(r, s), seen, P[:, r - cut.start : s - cut.start, seen]

    def image(self, V: Tensor) -> Tensor:
        """P v for the rows v of V, (size, r, m) -> (size, r, n)."""
        if self.tiles is not None:
            return self.tiles.image(V)
        # V P^T and not (P V^T)^T: some processors take four times as long for that
        parts = [torch.matmul(V[..., seen], P.mT) for _, seen, P in self.strips()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def pulled(self, U: Tensor) -> Tensor:
        """P^T u for the rows u of U, (size, r, n) -> (size, r, m)."""
        if self.tiles is not None:
            return self.tiles.pulled(U)
        total = U.new_zeros(*U.shape[:-1], self.m)
        for rows, seen, P in self.strips():
            total[..., seen] += U[..., rows] @ P
        return total

    @cached_property
    def received(self) -> Tensor:
        """1^T P, (size, m), in float64: how much attention each token receives."""
        if self.tiles is not None:
            return self.tiles.rows.received
        ones = torch.ones(self.size, 1, self.n).to(self.like)
        return self.pulled(ones).squeeze(-2).double()

    def size_of_rows(self) -> Tensor:
        """|P|_F, (size,), float64."""
        if self.tiles is not None:
            return self.tiles.rows.squares.sqrt()
        return sum(torch.linalg.vector_norm(P, dim=(-2, -1)).double().square() for _, P in self.blocks()).sqrt()  # type: ignore[union-attr]

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of P."""
        return next(self.blocks())[1]

    def diagonal(self) -> Tensor:
        """P_ii, (size, n)."""
        if self.tiles is not None:
            return self.tiles.diagonal()
        return torch.cat([P.diagonal(cut.start, -2, -1).clone() for cut, P in self.blocks()], dim=-1)

    def is_triangular(self) -> bool:
        """Whether no token looks at a later one, read from P itself unless it was said."""
        if self.causal is None:
            self.causal = self.n == self.m and all(
                not bool(P[:, 0, cut.start + 1 :].any()) and not bool(P.triu(cut.start + 1).any())
                for cut, P in self.blocks()
            )
        return self.causal


def pattern_of(
    P: Tensor | None,
    *,
    q: Tensor | None = None,
    k: Tensor | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
    causal: bool | None = None,
    mask: Tensor | None = None,
    where: str,
    trusted: bool = False,
    scratch: Scratch | None = None,
    sink: bool = False,
) -> tuple["Pattern", tuple[int, ...]]:
    """The pattern of P (..., n, m), or of softmax(q k^T scale + bias), and its batch shape (...).

    q (..., h, n, d_h), k (..., h or fewer, m, d_h); bias a bool or additive mask that broadcasts to (..., n, m);
    mask (..., n) without or with the head axis. `trusted` skips the check that rows are probabilities.
    sink: rows may sum to less than one.
    """
    scores = None
    if P is not None:
        if P.ndim < 2 or P.numel() == 0:
            check_stochastic(P, where=where)
        batch, (n, m) = tuple(P.shape[:-2]), P.shape[-2:]
        flat = P.detach().reshape(-1, n, m)
        flat = flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

        rows: Rows = partial(_given_rows, flat)

    elif q is not None and k is not None:
        check_tokens(q, where=where, name="q")
        check_tokens(k, where=where, name="k")
        batch, n, m = tuple(q.shape[:-2]), q.shape[-2], k.shape[-2]
        scores = scores_of(q, k, scale, bool(causal), where)
        rows = softmax_rows(scores, bias, batch)
    else:
        raise ShapeError(f"{where}: give P (..., n, m), or both q and k; got neither. Pass q= and k=.")
    size, heads = math.prod(batch), batch[-1] if batch else 1
    if mask is not None:
        if tuple(mask.shape) == (*batch[:-1], n) and batch:  # (..., n) without the head axis
            mask = mask.unsqueeze(-2).expand(*batch, n)
        mask = check_mask(mask, (*batch, n), where=where).reshape(size, n)
    if P is not None and not trusted:
        check_stochastic(P, mask, where=where)
    if P is not None:
        causal = None  # P shows by itself whether it is
    device = P.device if P is not None else q.device  # type: ignore[union-attr]
    pattern = Pattern(
        rows,
        size,
        n,
        m,
        mask=mask,
        causal=causal,
        heads=heads,
        device=device,
        scratch=scratch,
        sink=sink,
        scores=scores if bias is None else None,
    )
    return pattern, batch


def _given_rows(P: Tensor, b: int, c: int, r: int, s: int, _: Scratch) -> Tensor:
    return P[b:c, r:s]
