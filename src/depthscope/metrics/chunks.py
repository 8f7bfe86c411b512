"""A batch of states, a few samples at a time: read once, measured many times, summed in float64.

|X|_F^2 = |Pi_1 X|_F^2 + |Pi_2 X|_F^2,    Pi_1 = 1 1^T / n,    Pi_2 = I - Pi_1

Everything Yu & Zhang (2023) say of token similarity is a formula on these two energies.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from depthscope.checks import check_mask, check_tokens

SAFE = 1e-75  # the fourth power of it, times many channels, is a number in float64
Made = TypeVar("Made")
CHUNK = 1 << 19  # elements at a time: they fit the cache, and memory stays flat


class Energies(NamedTuple):
    """|Pi_1 X|_F^2 and |Pi_2 X|_F^2 of a state, each (...), float64."""

    common: Tensor
    centred: Tensor

    @property
    def total(self) -> Tensor:
        return self.common + self.centred


class Chunk:
    """A few samples x (b, n, d) in float32 or float64, padding set to zero; valid (b, n, 1) or None.

    scale (b,) or None: x is the state divided by it, a power of two, where its squares would leave float64's range.
    Sums are taken in float64, and derived parts are kept. The first token is subtracted before any mean is taken: of
    equal tokens exactly nothing is left (differences of near numbers are exact in any precision), and with
    |x - first|^2 <= n |Pi_2 x|^2 the subtraction that follows costs few digits.
    """

    def __init__(self, x: Tensor, valid: Tensor | None, scale: Tensor | None = None) -> None:
        self.x, self.valid, self.scale = x, valid, scale
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

    @cached_property
    def _first(self) -> Tensor:
        if self.valid is None:
            return self.x[:, :1]
        start = self.valid.int().argmax(-2, keepdim=True)
        return self.x.gather(-2, start.expand(-1, 1, self.x.shape[-1]))

    @cached_property
    def _shifted(self) -> Tensor:
        shifted = (self.x - self._first).double()
        return shifted if self.valid is None else torch.where(self.valid, shifted, 0.0)

    @cached_property
    def _shift(self) -> Tensor:
        return self._shifted.sum(-2, keepdim=True) / self.n[:, None, None]

    @cached_property
    def wide(self) -> Tensor:
        """x in float64."""
        return self.x.double()

    @cached_property
    def mean(self) -> Tensor:
        """The mean token, (b, 1, d)."""
        return self._first.double() + self._shift

    @cached_property
    def Pi_2_x(self) -> Tensor:
        """Centred tokens, (b, n, d)."""
        centred = self._shifted - self._shift
        return centred if self.valid is None else torch.where(self.valid, centred, 0.0)

    def Pi_2_x_in(self, R: Tensor) -> Tensor:
        """Centred tokens in other channels, Pi_2 x R, for R (d, k), in float64.

        The product is taken in the precision of x: what it loses is small beside the centred tokens, not beside x.
        """
        return (self.Pi_2_x.to(self.x.dtype) @ R.to(self.x.dtype)).double()

    @property
    def energies(self) -> Energies:
        """Of the state; infinite or zero where float64 ends."""
        return Energies(*(self.full_size(self.full_size(energy)) for energy in self.scaled_energies))

    @cached_property
    def scaled_energies(self) -> Energies:
        """Of x: the same shares, and always finite."""
        shifted = torch.linalg.vector_norm(self._shifted, dim=(-2, -1)).square()
        centred = shifted - self.n * self._shift.square().sum((-2, -1))
        return Energies(self.n * self.mean.square().sum((-2, -1)), centred.clamp_min(0.0))

    @cached_property
    def norms(self) -> Tensor:
        """|x_i|, (b, n); zero for padding."""
        return torch.linalg.vector_norm(self.wide, dim=-1)

    @cached_property
    def composite(self) -> Tensor:
        """|x|_{1,inf}, (b,)."""
        return one_inf(self.wide)


def one_inf(x: Tensor) -> Tensor:
    """sqrt(|x|_1 |x|_inf) of x (b, n, d): the largest column sum and the largest row sum of absolute values."""
    x = x.abs()
    return (x.sum(-2).amax(-1) * x.sum(-1).amax(-1)).sqrt()


def power_of_two(x: Tensor) -> Tensor | None:
    """2^k (b,) next to the largest entry of each sample x (b, n, d); None when squares of all of them are safe."""
    if x.dtype != torch.float64:
        return None
    size = x.abs().amax((-2, -1))
    safe = (size > SAFE) & (size < 1 / SAFE) | (size == 0) | ~size.isfinite()
    return None if bool(safe.all()) else torch.where(safe, 1.0, torch.exp2(size.log2().floor()))


Formula = Callable[[Chunk], Tensor]  # -> (b,)


def chunks(X: Tensor, mask: Tensor | None, *, where: str) -> Iterator[Chunk]:
    """X (..., n, d) as chunks over its flattened batch."""
    check_tokens(X, where=where)
    n, d = X.shape[-2:]
    flat = X.detach().reshape(-1, n, d)
    keep = None if mask is None else check_mask(mask, X.shape[:-1], where=where).reshape(-1, n, 1)
    step = max(1, CHUNK // (n * d))
    for i in range(0, len(flat), step):
        yield chunk_of(flat[i : i + step], None if keep is None else keep[i : i + step])


def chunk_of(x: Tensor, valid: Tensor | None) -> Chunk:
    """The chunk of x (b, n, d) in any precision, over the tokens where valid (b, n, 1) is True."""
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    x = x if valid is None else torch.where(valid, x, 0.0)
    scale = power_of_two(x)
    return Chunk(x if scale is None else x / scale[:, None, None], valid, scale)


def by_sample(formula: Formula, X: Tensor, mask: Tensor | None, *, where: str) -> Tensor:
    """A formula on every sample of X (..., n, d) -> (...)."""
    return torch.cat([formula(chunk) for chunk in chunks(X, mask, where=where)]).reshape(X.shape[:-2])


def energies(X: Tensor, mask: Tensor | None = None, *, where: str = "energies") -> Energies:
    """The two energies of X (..., n, d), over the tokens where mask (..., n) is True."""
    pairs = [chunk.energies for chunk in chunks(X, mask, where=where)]
    common, centred = (torch.cat(column).reshape(X.shape[:-2]) for column in zip(*pairs, strict=True))
    return Energies(common, centred)
