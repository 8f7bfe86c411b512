"""Tokens drawn from their law: numbers for a step that has no closed law.

A draw has what the law says: the known vectors, and Gaussian rows of its covariance. Where channels are enough, rows
are drawn orthogonal to each other and to the known vectors, and moved as little as it takes so that the overlaps of the
draw are those of the law and not those of a few random numbers.
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
    """A draw of one law: its Gaussian parts as one."""
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
    S, X = law.overlaps().expand(batch, -1, -1), known + G
    if n <= width:
        return _with_overlaps(X, S)
    size = (S.diagonal(dim1=-2, dim2=-1).clamp(min=0) / X.square().mean(-1).clamp(min=1e-300)).sqrt()
    return X * size.unsqueeze(-1)


def _with_overlaps(X: Tensor, S: Tensor) -> Tensor:
    """Tokens near X (B, n, c) whose overlaps are S: M X with M = R^-1 (R S R)^(1/2) R^-1, R^2 the overlaps of X.

    The covariance of a law need not be positive where the known part and the rest of tokens have to do with each other.
    """
    energies, directions = torch.linalg.eigh(X @ X.mT / X.shape[-1])
    there = energies > 1e-10 * energies.amax(-1, keepdim=True)
    root = torch.where(there, energies, 0.0).sqrt()
    inverse = torch.where(there, 1 / root.clamp(min=1e-300), 0.0)
    R, back = ((directions * r.unsqueeze(-2)) @ directions.mT for r in (root, inverse))
    whole, basis = torch.linalg.eigh(R @ S @ R)
    between = (basis * whole.clamp(min=0).sqrt().unsqueeze(-2)) @ basis.mT
    return back @ between @ back @ X


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
