"""How sure a law is: what was neglected on the way, as errors of the common and the centred energy of the tokens.

Two kinds of errors walk through a block. What the odds t_sim / t_div were off by before it is handed on (slope), and
every step adds what it takes as a mean though chance has a say (variance): the overlap of two vectors that are
strangers, 1 / sqrt(width); what a matrix makes of one vector; where the heads of attention happen to look; and weights
with a structure that random ones do not have. Where tokens were drawn, draws differ.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

KINDS = ("width", "heads", "structure", "again", "draws")
STRUCTURE = 0.1  # relative variance of an energy for each random width that a matrix lacks; a guess, not fitted
BY_CHANCE = 0.25  # of its width a random matrix may seem to lack, by the few probes
ROUNDING = 1e-12  # share of all energy below which an energy is rounding, as of tokens that are all equal
HEAD = 0.5  # relative variance of sum_s P_ts^2 - 1/n over heads: .3 to 1 for scores of a variance from .5 to 40


@dataclass(frozen=True, eq=False)
class Doubt:
    """slope (B, 2): change of the common and the centred energy with the log-odds before the block.

    variance (B, 2, kinds): of the two energies, by each of KINDS that was neglected since the block began.
    scores: the largest variance of a query's scores on the way, a mean over queries.
    """

    slope: Tensor
    variance: Tensor
    scores: float = 0.0

    @classmethod
    def at_start(cls, energies: Tensor) -> "Doubt":
        """Before a block of tokens with these energies (B, 2)."""
        both = energies.prod(-1, keepdim=True) / energies.sum(-1, keepdim=True).clamp(min=1e-300)
        return cls(
            both * torch.tensor([1.0, -1.0], dtype=energies.dtype), energies.new_zeros(*energies.shape, len(KINDS))
        )

    def times(self, factor: float) -> "Doubt":
        """Of energies that are `factor` times as large."""
        return Doubt(factor * self.slope, factor**2 * self.variance, self.scores)

    def plus(self, other: "Doubt | None", factor: float = 1.0) -> "Doubt":
        """Of a sum of energies, the second times `factor`: errors that were handed on go together, others do not."""
        if other is None:
            return self
        slope, variance = self.slope + factor * other.slope, self.variance + factor**2 * other.variance
        return Doubt(slope, variance, max(self.scores, other.scores))

    def moved(self, old: Tensor, new: Tensor, kept: Tensor | float = 1.0) -> "Doubt":
        """Where a step turns energies `old` into `new` (B, 2); kept: the share of the new common one that is old."""
        ratio = new / old.maximum(ROUNDING * old.sum(-1, keepdim=True)).clamp(min=1e-300)
        ratio = torch.stack([ratio[..., 0] * kept, ratio[..., 1]], -1)
        return Doubt(ratio * self.slope, ratio.square().unsqueeze(-1) * self.variance, self.scores)

    def of_one_size(self, energies: Tensor) -> "Doubt":
        """After a norm: what both energies gain or lose together is taken away."""
        change = self.slope.sum(-1, keepdim=True) / energies.sum(-1, keepdim=True).clamp(min=1e-300)
        return replace(self, slope=self.slope - change * energies)

    def with_chance(self, kind: str, variance: Tensor) -> "Doubt":
        """With more variance (B, 2) of one kind."""
        added = self.variance.new_zeros(*variance.shape, len(KINDS))
        added[..., KINDS.index(kind)] = variance
        return replace(self, variance=self.variance + added)

    def of_odds(self, energies: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log-odds: their slope (B,), and their variance by kind (B, kinds)."""
        E = energies.maximum(ROUNDING * energies.sum(-1, keepdim=True)).clamp(min=1e-300)
        slope = self.slope / E
        return slope[..., 0] - slope[..., 1], (self.variance / E.square().unsqueeze(-1)).sum(-2)


def squares(S: Tensor) -> tuple[Tensor, Tensor]:
    """For overlaps S (B, n, n): the common energy squared, and the sum of squares of the centred ones, (B,) each.

    Their sizes are those of Law.energies: 1^T S 1 / n, and |H S H|^2 with H = 1 - 1 1^T / n.
    """
    n = S.shape[-1]
    rows = S.sum(-1)
    common = rows.sum(-1) / n
    return common.square(), (S.square().sum((-2, -1)) - 2 * rows.square().sum(-1) / n + common.square()).clamp(min=0)


def by_width(gaussian: Tensor, known: Tensor, width: float) -> Tensor:
    """The variance of both energies when a matrix of an effective width meets tokens, (B, 2).

    gaussian: overlaps of the part that it is a stranger to; known (B,): the common energy of the part that it knows.
    """
    common, centred = squares(gaussian)
    return 2 / width * torch.stack([common + 2 * known * common.sqrt(), centred], -1)


def of_strangers(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], width: int) -> Tensor:
    """The variance of both energies of a sum of two laws by the overlap of their vectors, which is taken for 0, (B, 2).

    one, other: overlaps of all, and the common energy of what is known (B,); known overlaps are not neglected.
    """
    (S, a), (R, b) = one, other
    (c, e), (d, f) = squares(S), squares(R)
    common = (c.sqrt() * d.sqrt() - a * b).clamp(min=0)
    return 4 / width * torch.stack([common, (e * f).sqrt()], -1)


def by_heads(more: Tensor, C: Tensor, S_v: Tensor, D: Tensor, heads: int, d_h: int) -> Tensor:
    """The variance of both energies because a few heads do not look where the mean of many does, (B, 2).

    more: what uneven attention adds to the overlaps. C: where attention looks on average, S_v: overlaps of the values,
    D (B, n): their spread. A head that looks at other keys than C changes what it adds; and where keys differ in their
    overlap with what C sees, as early tokens do under a causal mask, it changes the overlap of the two.
    """
    n = S_v.shape[-1]
    common, centred = squares(more)
    own = more.diagonal(dim1=-2, dim2=-1)
    together = common.sqrt() / own.sum(-1).clamp(min=1e-300)  # 1 where all queries look alike, 1/n for strangers
    U = C @ S_v
    mean = C.mean(-2, keepdim=True)
    uneven = (own / D.clamp(min=1e-300)).clamp(max=1)  # sum_s P_ts^2 - 1/m
    all_queries = n * uneven.sum(-1) * together * _variance(U.mean(-2, keepdim=True), mean).squeeze(-1)
    each_query = n * (uneven * _variance(U, C)).sum(-1) * together
    cross = 4 / heads * torch.stack(torch.broadcast_tensors(all_queries, each_query), -1)
    return (HEAD + 2 / d_h) / heads * torch.stack([common, centred], -1) + cross


def _variance(U: Tensor, weight: Tensor) -> Tensor:
    """Of the numbers U (..., n) with these weights, which add up to 1."""
    return ((weight * U.square()).sum(-1) - (weight * U).sum(-1).square()).clamp(min=0)


def by_draws(energies: Tensor) -> Tensor:
    """The variance of both energies of what was drawn several times, energies (draws, B, 2) -> (B, 2).

    The model is one more draw: its variance, and that of the mean of these. Sequences are taken to differ alike,
    relative to their energies, since draws are few.
    """
    mean = energies.mean(0)
    relative = (energies.var(0) / mean.square().clamp(min=1e-300)).mean(0) if len(energies) > 1 else 0 * mean[0]
    return (1 + 1 / len(energies)) * relative * mean.square()


def by_structure(gaussian: Tensor, W: Tensor, width: float) -> Tensor:
    """The variance of both energies by the structure of W (out, in), (B, 2): training turns it towards the tokens.

    0 for independent entries, whose width is in out / (in + out).
    """
    lacks = max(0.0, W.numel() / (W.shape[0] + W.shape[1]) / max(width, 1e-300) - 1 - BY_CHANCE)
    whole = gaussian.diagonal(dim1=-2, dim2=-1).sum(-1)
    common = gaussian.sum((-2, -1)) / gaussian.shape[-1]
    return STRUCTURE * lacks * torch.stack([common, whole - common], -1).square()


def effective_width(W: Tensor, probes: int = 8) -> float:
    """How many directions a matrix W (out, in) has: |W|^4 / |W^T W|^2, by a few random vectors.

    in out / (in + out) for independent entries; few where some singular values rule, as training makes them.
    """
    chance = torch.Generator().manual_seed(0)
    R = torch.randn(W.shape[1], probes, generator=chance, dtype=W.dtype)
    Y = W @ R
    return float(Y.square().sum()) ** 2 / probes / max(float((W.T @ Y).square().sum()), 1e-300)
