"""Gaussian parts of a law: where they come from, and what matrices have made of their channels."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GaussianSource:
    """Gaussian rows Z (m rows) with covariance K (B, m, m) in every channel; two sources are independent."""

    K: Tensor


@dataclass(frozen=True, eq=False)
class GaussianPart:
    """Z M^T for a source Z, M (c, channels of Z); M None: Z as it is.

    followed: matrices act on M, because blocks that share their weights meet it again. Otherwise every matrix is a
    stranger to Z, and what it makes of Z is a source of its own, of which the energy of each channel is kept:
    profile (c,), of mean 1; None: all alike. So queries, keys and values that come out of one product keep their own.
    """

    source: GaussianSource
    followed: bool = False
    M: Tensor | None = None
    profile: Tensor | None = None

    def through(self, W: Tensor) -> "GaussianPart":
        """The channels times W (out, c)."""
        return GaussianPart(self.source, self.followed, W if self.M is None else W @ self.M)

    def channelwise(self, f: Callable[[Tensor], Tensor]) -> tuple["GaussianPart", float]:
        """f on vectors (..., c), as for the known part; and the factor that comes with it."""
        if self.M is not None:
            return GaussianPart(self.source, self.followed, f(self.M.T).T), 1.0
        return (self, 1.0) if self.profile is None else self._with(f(self.profile))

    def scaled(self, weight: Tensor) -> tuple["GaussianPart", float]:
        """Every channel times its own number, weight (c,); and the factor that comes with it."""
        if self.followed:
            M = torch.diag(weight) if self.M is None else weight.unsqueeze(-1) * self.M
            return GaussianPart(self.source, self.followed, M), 1.0
        return self._with(weight.square() if self.profile is None else weight.square() * self.profile)

    def _with(self, energies: Tensor) -> tuple["GaussianPart", float]:
        mean = max(float(energies.mean()), 1e-300)
        return GaussianPart(self.source, profile=energies / mean), mean**0.5

    def overlap(self, other: "GaussianPart") -> float:
        """What two parts of one source share, per channel: tr(M_1 M_2^T) / c; 1 for Z itself."""
        if self.M is None or other.M is None:
            M = self.M if other.M is None else other.M
            return 1.0 if M is None else float(M.diagonal().sum()) / len(M)
        return float((self.M * other.M).sum()) / len(self.M)


def profile_of(random: dict[GaussianPart, Tensor]) -> Tensor | None:
    """The energy of each channel of a sum of parts, mean 1, (c,); None where all are alike."""
    found = [(s.profile, float(((T @ s.source.K) * T).sum())) for s, T in random.items() if s.profile is not None]
    if not found:
        return None
    whole = sum(float(((T @ s.source.K) * T).sum()) for s, T in random.items())
    if whole <= 0:
        return None
    named = sum(energy for _, energy in found)
    return sum(profile * energy for profile, energy in found) / whole + (whole - named) / whole  # type: ignore[return-value]


def between_channels(random: dict[GaussianPart, Tensor], c: int) -> Tensor:
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
