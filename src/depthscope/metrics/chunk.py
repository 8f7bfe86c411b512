"""A few samples of a state: what all its metrics share, computed once.

|X|_F^2 = |Pi_1 X|_F^2 + |Pi_2 X|_F^2,    Pi_1 = 1 1^T / n,    Pi_2 = I - Pi_1

Everything Yu & Zhang (2023) say of token similarity is a formula on these two energies.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from depthscope.metrics.room import Room
from depthscope.metrics.sums import cuts, norms, products, token_sum, weighted_sum

SPREAD = 0.25  # the part of |x|^2 above which |x|^2 - n |mean|^2 loses no digit that counts
TINY = 1e-25  # a sum of squares whose terms may have been rounded to nothing in float32
FAR = 8.0  # times the centred energy: a first token that is no centre to take differences from
Made = TypeVar("Made")


class Energies(NamedTuple):
    """|Pi_1 X|_F^2 and |Pi_2 X|_F^2 of a state, each (...), float64."""

    common: Tensor
    centred: Tensor

    @property
    def total(self) -> Tensor:
        return self.common + self.centred


class Centre(NamedTuple):
    """The mean token, (b, d) in float64, how to come to it from x, and what is left then."""

    mean: Tensor
    steps: tuple[Tensor, ...]  # vectors (b, 1, d), as precise as x, which leave centred tokens when they are subtracted
    centred: Tensor  # |Pi_2 x|_F^2, (b,), float64


class Chunk:
    """A few samples x (b, n, d) in float32 or float64, padding set to zero; valid (b, n, 1) or None.

    scale (b,) or None: x is the state divided by it, a power of two, where its squares would leave the dtype's range.
    Short sums are taken in the precision of x, longer ones in float64 (sums.py), and derived parts are kept.
    Where tokens are alike, the first one is subtracted before any mean is taken: of equal tokens exactly nothing is
    left (differences of near numbers are exact in any precision), and what is left is as precise as x.
    So energies of float32 tokens are off by about 1e-8 of themselves, those of float64 tokens by 1e-15.
    """

    def __init__(self, x: Tensor, valid: Tensor | None, scale: Tensor | None = None, room: Room | None = None) -> None:
        self.x, self.valid, self.scale = x, valid, scale
        self.room = Room() if room is None else room
        self._made: dict[Callable[[Chunk], Any], Any] = {}

    def once(self, make: "Callable[[Chunk], Made]") -> "Made":
        """make(self), computed at the first call and kept: what several formulas share."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def full_size(self, size: Tensor) -> Tensor:
        """A size (b,) of x as that of the state."""
        return size if self.scale is None else size * self.scale

    @cached_property
    def n(self) -> Tensor:
        """Tokens that count, (b,)."""
        if self.valid is None:
            return torch.full((len(self.x),), self.x.shape[-2], dtype=torch.float64, device=self.x.device)
        return self.valid.sum((-2, -1)).double()

    def token(self, place: Tensor) -> Tensor:
        """One token of each sample, (b, 1, d), by its place (b,)."""
        return self.x.gather(-2, place[:, None, None].expand(-1, 1, self.x.shape[-1]))

    @cached_property
    def first(self) -> Tensor:
        """The first token that is no padding, (b, 1, d)."""
        return self.x[:, :1] if self.valid is None else self.token(self.valid.int().argmax(-2).squeeze(-1))

    def part(self, keep: Tensor) -> "Chunk":
        """The same tokens with some set to zero that do not count any more; keep (b, n, 1)."""
        return Chunk(self.x.masked_fill(~keep, 0.0), keep, self.scale, self.room)

    def walk(self, *vectors: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tokens less some vectors (b, 1, d), one after the other, in blocks that stay in the cache; padding is zero.

        Yields samples, tokens, and the block, which is overwritten by the next one.
        """
        for samples, tokens, held in self._blocks():
            yield samples, tokens, self._less(self.x[samples, tokens], vectors, samples, tokens, held)

    def _blocks(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Samples and tokens of each block, and the same memory for all of them."""
        held: Tensor | None = None
        for samples, tokens in cuts(*self.x.shape):
            x = self.x[samples, tokens]
            held = self.room.take(tuple(x.shape), x) if held is None else held
            yield samples, tokens, held[: x.shape[0], : x.shape[1]]
        self.room.give_back()

    def _less(self, x: Tensor, vectors: tuple[Tensor, ...], samples: slice, tokens: slice, out: Tensor) -> Tensor:
        torch.sub(x, vectors[0][samples], out=out)
        for vector in vectors[1:]:
            out.sub_(vector[samples])
        return out if self.valid is None else out.masked_fill_(~self.valid[samples, tokens], 0.0)

    def sums_without(self, *vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Norms (b, n) and sum (b, d) of the tokens less some vectors, float64."""
        sizes, total = [], _zeros(self.x)
        for samples, _, z in self.walk(*vectors):
            sizes.append(norms(z).flatten())
            total[samples] += token_sum(z)
        return joined(sizes).view(self.x.shape[:-1]), total

    @cached_property
    def wide(self) -> Tensor:
        """x in float64."""
        return self.x.double()

    @cached_property
    def norms(self) -> Tensor:
        """|x_i|, (b, n), float64; zero for padding."""
        return norms(self.x)

    @cached_property
    def centre(self) -> Centre:
        return self._apart() or self._near()

    def _apart(self) -> Centre | None:
        """Where |x|^2 - n |mean|^2 is precise: a large part of |x|^2, in all samples.

        Two tokens of each sample tell whether that is worth a try. An accelerator is not asked.
        """
        x = self.x
        if x.dtype == torch.float64 or x.device.type != "cpu":
            return None
        one, other = x[:, 0], x[:, x.shape[-2] // 2]
        if not bool((_square(other - one) > SPREAD * _square(one)).all()):
            return None
        total, mean = _square(self.norms), token_sum(x) / self.n[:, None]
        centred = total - self.n * _square(mean)
        if not bool((centred > SPREAD * total).all()):
            return None
        return Centre(mean, (mean.to(x.dtype)[:, None],), centred)

    def _near(self) -> Centre:
        """By way of the first token. In float64 where that one is far from the others, or differences are tiny."""
        first, n = self.first, self.n[:, None]
        sizes, total = self.sums_without(first)
        size, shift = _square(sizes), total / n
        centred = size - self.n * _square(shift)
        steps = (first, shift.to(first.dtype)[:, None])
        if self.x.dtype == torch.float64:
            return Centre(first.squeeze(-2) + shift, steps, centred)
        if self.x.device.type == "cpu":
            if not bool(((size <= FAR * centred) & (size > TINY)).all()):
                mean, _, centred = Chunk(self.wide, self.valid)._near()
                return Centre(mean, (mean.float()[:, None], (mean - mean.float()).float()[:, None]), centred)
        else:
            sizes, total = self.sums_without(*steps)
            centred = _square(sizes) - self.n * _square(total / n)
        mean = first.squeeze(-2) + shift
        apart = centred > SPREAD * self.n * _square(mean)  # there a mean may be far smaller than tokens
        if self.x.device.type != "cpu" or bool(apart.any()):
            mean = torch.where(apart[:, None], token_sum(self.x) / n, mean)
        return Centre(mean, steps, centred)

    @property
    def mean(self) -> Tensor:
        """The mean token, (b, 1, d), float64."""
        return self.centre.mean[:, None]

    @cached_property
    def Pi_2_x(self) -> Tensor:
        """Centred tokens, (b, n, d), in the precision of x; zero for padding."""
        centred = self.room.take(tuple(self.x.shape), self.x)
        for samples, tokens in cuts(*self.x.shape):
            self._less(self.x[samples, tokens], self.centre.steps, samples, tokens, centred[samples, tokens])
        return centred

    @property
    def energies(self) -> Energies:
        """Of the state; infinite or zero where float64 ends."""
        return Energies(*(self.full_size(self.full_size(energy)) for energy in self.scaled_energies))

    @cached_property
    def scaled_energies(self) -> Energies:
        """Of x: the same shares, and always finite."""
        return Energies(self.n * _square(self.centre.mean), self.centre.centred.clamp_min(0.0))

    @cached_property
    def composite(self) -> Tensor:
        """|x|_{1,inf}, (b,), float64."""
        return self._one_inf(self.x)

    @cached_property
    def centred_composite(self) -> Tensor:
        """|Pi_2 x|_{1,inf}, (b,), float64."""
        return self._one_inf(self.Pi_2_x)

    def _one_inf(self, x: Tensor) -> Tensor:
        """Sqrt of the largest column sum times the largest row sum of absolute values, (b,), float64.

        torch adds float32 by pairs, so each sum is off by about 1e-7 of itself.
        """
        rows, columns = [], _zeros(x)
        for samples, tokens, held in self._blocks():
            sizes = torch.abs(x[samples, tokens], out=held)
            rows.append(sizes.sum(-1).flatten())
            columns[samples] += sizes.sum(-2)
        row = joined(rows).view(x.shape[:-1]).amax(-1)
        return (columns.amax(-1) * row.double()).sqrt()

    def weighted(self, w: Tensor) -> Tensor:
        """sum_i w_i x_i for w (b, n), (b, d), float64."""
        return weighted_sum(self.x, w)

    def along(self, vector: Tensor) -> Tensor:
        """x_i . v for v (b, 1, d), (b, n), float64."""
        return products(self.x, vector.squeeze(-2))


def joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(len(x), x.shape[-1], dtype=torch.float64, device=x.device)


def _square(v: Tensor) -> Tensor:
    """|v|^2 of vectors, over the last axis."""
    return torch.linalg.vector_norm(v, dim=-1).square()
