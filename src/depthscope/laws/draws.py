"""Tokens drawn from their law: numbers for a step that has no closed law.

A draw has all that the law says: the known vectors as they are, and Gaussian rows of its covariance. Where channels are
enough, rows are drawn orthogonal to each other and to the known vectors, so that the overlaps of the draw are those of
the law and not those of a few random numbers.
"""

import torch
from torch import Tensor

from depthscope.laws.gaussian_source import GaussianPart, GaussianSource, between_channels, profile_of
from depthscope.laws.law import Law


def drawn(laws: list[Law], batch: int, widths: list[int], chance: torch.Generator) -> list[Tensor]:
    """One draw of tokens for each law, (batch, n, width) each; parts that laws share are drawn once."""
    if len(laws) == 1:
        return [_alone(laws[0], batch, widths[0], chance)]
    rows: dict[tuple[GaussianSource, int], Tensor] = {}
    found = []
    for law, width in zip(laws, widths, strict=True):
        X = _known(law, batch, width)
        for part, T in law.random.items():
            inner = width if part.M is None else part.M.shape[1]
            if (part.source, inner) not in rows:
                K = part.source.K.expand(batch, -1, -1)
                rows[part.source, inner] = _root(K) @ _normal(batch, K.shape[-1], inner, chance)
            X = X + T @ _in_channels(rows[part.source, inner], part)
        found.append(X)
    return found


def _alone(law: Law, batch: int, width: int, chance: torch.Generator) -> Tensor:
    """A draw of one law: its Gaussian parts as one, its sizes exact."""
    K = law.gaussian().expand(batch, -1, -1)
    n = K.shape[-1]
    known = _known(law, batch, width)
    vectors = [v.expand(batch, width) for _, v in law.known]
    if n + len(vectors) <= width:
        rest = _normal(batch, n, width, chance)
        together = torch.cat([torch.stack(vectors, 1), rest], 1) if vectors else rest
        E = torch.linalg.qr(together.mT).Q.mT[:, len(vectors) :] * width**0.5
    else:
        E = _normal(batch, n, width, chance)
        E = E * (width**0.5 / E.norm(dim=-1, keepdim=True))
    if law.followed:
        G = _root(K) @ E @ between_channels(law.random, width).T
    else:
        profile = profile_of(law.random)
        G = _root(K) @ E if profile is None else _root(K) @ E * _wide(profile, width).sqrt()
    wanted = K.diagonal(dim1=-2, dim2=-1).clamp(min=0)
    there = G.square().mean(-1)
    return known + G * torch.where(there > 0, (wanted / there.clamp(min=1e-300)).sqrt(), 0.0).unsqueeze(-1)


def _known(law: Law, batch: int, width: int) -> Tensor:
    """sum_j t_j v_j, (batch, n, width)."""
    X = torch.zeros(batch, law.tokens, width, dtype=torch.float64)
    for t, v in law.known:
        X = X + t.unsqueeze(-1) * v.expand(-1, width).unsqueeze(-2)
    return X


def _in_channels(rows: Tensor, part: GaussianPart) -> Tensor:
    if part.M is not None:
        return rows @ part.M.T
    return rows if part.profile is None else rows * _wide(part.profile, rows.shape[-1]).sqrt()


def _wide(profile: Tensor, width: int) -> Tensor:
    return profile.repeat(max(1, width // len(profile)))


def _root(K: Tensor) -> Tensor:
    """A matrix whose square is K, also where rounding has made K a little negative."""
    energies, directions = torch.linalg.eigh((K + K.mT) / 2)
    return directions * energies.clamp(min=0).sqrt().unsqueeze(-2)


def _normal(batch: int, rows: int, width: int, chance: torch.Generator) -> Tensor:
    return torch.randn(batch, rows, width, generator=chance, dtype=torch.float64)
