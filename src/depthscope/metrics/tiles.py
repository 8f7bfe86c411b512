"""Products with P = softmax(q k^T) of long sequences: tile by tile from q and k, in memory that grows with n alone.

One pass over the scores tells what every row is divided by; from then on a tile costs one product and one exponential,
s_ij - c_i being q and k with one more channel. Tiles above the diagonal of a causal P are never made.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from depthscope.metrics.scratch import Scratch

# rows and columns of a tile: what one core keeps near on a CPU; elsewhere few large calls are faster
NEAR, LARGE = (128, 2048), (1024, 8192)


class Scores(NamedTuple):
    """What P is made of: q (b, n, d), k (b, m, d), the scale of their products; causal: query i sees keys 0 .. i."""

    q: Tensor
    k: Tensor
    factor: float
    causal: bool

    @property
    def wide(self) -> torch.dtype:
        """In which P is computed."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    def of_heads(self, i: int, j: int) -> "Scores":
        return self._replace(q=self.q[i:j], k=self.k[i:j])


class Rows(NamedTuple):
    """Of E_ij = exp(s_ij - c_i), c_i = max_j s_ij: c, 1 / sum_j E_ij and the entropy of every row of P, (b, n) each;
    1^T P (b, m); |P|_F^2 (b,). All but c in float64."""

    top: Tensor
    weight: Tensor
    entropy: Tensor
    received: Tensor
    squares: Tensor


class Tiles:
    """P of the scores (b, n, m), as products. Vectors are rows: (b, r, m) or (b, r, n)."""

    def __init__(self, scores: Scores, scratch: Scratch) -> None:
        self.causal, self.scratch = scores.causal, scratch
        self.size, self.n, self.m = scores.q.shape[0], scores.q.shape[1], scores.k.shape[1]
        height, width = NEAR if scores.q.device.type == "cpu" else LARGE
        self.height, self.width = min(height, self.n), min(width, self.m)
        self.q = F.pad(scores.q.to(scores.wide) * scores.factor, (0, 1))  # one more channel, for -c
        self.k = F.pad(scores.k.to(scores.wide), (0, 1), value=1.0)
        self._centred: Tensor | None = None  # Pi_2 P v of the last vectors v
        self._returned: Tensor | None = None  # and P^T Pi_2 P v, where the same pass gave it
        self._returns = False  # whether it was asked for the last time

    # products

    def image(self, V: Tensor) -> Tensor:
        """P v. Where P^T Pi_2 P v was asked for after the last one, the same pass gives it too: see pulled."""
        there, self._returned = self._there_and_back(V) if self._returns else (self._there(V), None)
        self._centred, self._returns = _centred(there), False
        return there

    def pulled(self, U: Tensor) -> Tensor:
        """P^T u."""
        if self._centred is not None and self._centred.shape == U.shape and torch.equal(U, self._centred):
            self._returns = True
            if self._returned is not None:
                return self._returned
        return self._back(U)

    def _there(self, V: Tensor) -> Tensor:
        weight, there = self._weight, V.new_zeros(*V.shape[:-1], self.n)
        for cut in self._strips():
            for columns, tile in self._exponentials(cut):
                there[..., cut] += V[..., columns] @ tile.mT
        return there.mul_(weight)

    def _back(self, U: Tensor) -> Tensor:
        back, U = U.new_zeros(*U.shape[:-1], self.m), U * self._weight
        for cut in self._strips():
            for columns, tile in self._exponentials(cut):
                back[..., columns] += U[..., cut] @ tile
        return back

    def _there_and_back(self, V: Tensor) -> tuple[Tensor, Tensor]:
        """P v and P^T Pi_2 P v: the mean of P v over its rows, (1^T P) v / n, is known before the pass."""
        there, back = V.new_zeros(*V.shape[:-1], self.n), V.new_zeros(*V.shape[:-1], self.m)
        weight, received = self._weight, self.rows.received[:, None]
        mean = (V.double() @ received.mT / self.n).to(V.dtype)
        for cut in self._strips():
            strip = list(self._exponentials(cut, kept=True))
            y = sum(V[..., columns] @ tile.mT for columns, tile in strip) * weight[..., cut]
            there[..., cut] = y
            y = (y - mean) * weight[..., cut]
            for columns, tile in strip:
                back[..., columns] += y @ tile
        left = (there.double() - mean).mean(-1, keepdim=True)  # rounding noise has a mean too
        return there, back - (left * received).to(V.dtype)

    # rows

    @cached_property
    def rows(self) -> Rows:
        """What one pass over the scores tells."""
        top = self.q.new_empty(self.size, self.n)
        weight, entropy = self.q.new_empty(2, self.size, self.n, dtype=torch.float64)
        received, squares = (weight.new_zeros(shape) for shape in ((self.size, self.m), (self.size,)))
        for cut in self._strips():
            strip = list(self._scores(cut, kept=True))
            seen = [self._visible(cut, columns, tile, -torch.inf) for columns, tile in strip]
            c = torch.stack([tile.amax(-1) for tile in seen]).amax(0)
            total, size, dot = weight.new_zeros(3, *c.shape)
            exponentials = []
            for i, (columns, s) in enumerate(strip):
                s -= c[..., None]
                E = torch.exp(s, out=self._memory(f"E {i}", s.shape))
                exponentials.append((columns, E))
                total += E.sum(-1)
                size += torch.linalg.vector_norm(E, dim=-1).double().square()
                dot += torch.linalg.vecdot(E, self._visible(cut, columns, s, 0.0))
            top[:, cut], weight[:, cut], entropy[:, cut] = c, 1 / total, total.log() - dot / total
            squares += (size / total.square()).sum(-1)
            share = weight[:, None, cut].to(c.dtype)
            for columns, E in exponentials:
                received[:, columns] += (share @ E).squeeze(-2)
        self.q[..., -1] = -top  # from here on scores are s_ij - c_i
        return Rows(top, weight, entropy, received, squares)

    def diagonal(self) -> Tensor:
        """P_ii, (b, n) of a square P."""
        s = torch.linalg.vecdot(self.q[..., :-1], self.k[..., :-1])
        return (s - self.rows.top).exp() * self.rows.weight.to(s.dtype)

    # tiles

    @cached_property
    def _weight(self) -> Tensor:
        return self.rows.weight[:, None].to(self.q.dtype)

    def _strips(self) -> Iterator[slice]:
        """Rows that are worked on together."""
        return (slice(r, min(r + self.height, self.n)) for r in range(0, self.n, self.height))

    def _exponentials(self, cut: slice, kept: bool = False) -> Iterator[tuple[slice, Tensor]]:
        for columns, tile in self._scores(cut, kept):
            yield columns, self._visible(cut, columns, tile.exp_(), 0.0)

    def _scores(self, cut: slice, kept: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """The scores of some rows, tile by tile; each lives until the next, or where kept, until the next rows."""
        end = min(cut.stop, self.m) if self.causal else self.m
        for c in range(0, end, self.width):
            columns = slice(c, min(c + self.width, end))
            tile = self._memory(f"tile {c if kept else 0}", (self.size, cut.stop - cut.start, columns.stop - c))
            yield columns, torch.bmm(self.q[:, cut], self.k[:, columns].mT, out=tile)

    def _memory(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = torch.Size(shape).numel()
        return self.scratch.take(name, (self.size * self.height * self.width,), self.q)[:size].view(shape)

    def _visible(self, cut: slice, columns: slice, tile: Tensor, other: float) -> Tensor:
        """The tile with another number, in place, where a query may not look."""
        if self.causal and columns.stop > cut.start + 1:
            later = torch.ones(tile.shape[-2:], dtype=torch.bool, device=tile.device).triu_(
                cut.start - columns.start + 1
            )
            tile.masked_fill_(later, other)
        return tile


def _centred(U: Tensor) -> Tensor:
    """Pi_2 u, twice, as those who ask do: what is left of the mean by rounding counts where differences are small."""
    for _ in range(2):
        U = U - U.mean(-1, keepdim=True)
    return U
