"""Gaussian parts of a law: where they come from, and what matrices have made of their channels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """Gaussian rows Z (m rows) with covariance K (B, m, m) in every channel; two sources are independent."""

    K: Tensor


@dataclass(frozen=True, eq=False)
class Strand:
    """Z M^T for a source Z, M (c, channels of Z); M None: Z as it is.

    followed: matrices act on M, because blocks that share their weights meet it again. Otherwise every matrix is a
    stranger to Z, and what it makes of Z is a source of its own.
    """

    source: Source
    followed: bool = False
    M: Tensor | None = None

    def through(self, W: Tensor) -> "Strand":
        """The channels times W (out, c)."""
        return Strand(self.source, self.followed, W if self.M is None else W @ self.M)

    def channelwise(self, f: Callable[[Tensor], Tensor]) -> "Strand":
        """f on vectors (..., c), as for the known part."""
        return self if self.M is None else Strand(self.source, self.followed, f(self.M.T).T)

    def scaled(self, weight: Tensor) -> "Strand":
        """Every channel times its own number, weight (c,)."""
        M = torch.diag(weight) if self.M is None else weight.unsqueeze(-1) * self.M
        return Strand(self.source, self.followed, M)

    def overlap(self, other: "Strand") -> float:
        """What two strands of one source share, per channel: tr(M_1 M_2^T) / c; 1 for Z itself."""
        if self.M is None or other.M is None:
            M = self.M if other.M is None else other.M
            return 1.0 if M is None else float(M.diagonal().sum()) / len(M)
        return float((self.M * other.M).sum()) / len(self.M)


def between_channels(random: dict[Strand, Tensor], c: int) -> Tensor:
    """A factor M (c, c) of the covariance of channels, a mean over tokens, of mean variance 1: M M^T, tr M M^T = c."""
    total = torch.zeros(c, c, dtype=torch.float64)
    for a, T in random.items():
        for b, R in random.items():
            if a.source is not b.source:
                continue
            share = float(((T @ a.source.K) * R).sum((-2, -1)).mean())
            A, B = (torch.eye(c, dtype=torch.float64) if x.M is None else x.M for x in (a, b))
            total += share * (A @ B.T)
    energies, directions = torch.linalg.eigh((total + total.T) / 2)
    energies = energies.clamp(min=0)  # collapsed tokens leave differences of rounding errors
    return directions * (energies * c / energies.sum().clamp(min=1e-300)).sqrt()
