"""The law of tokens: what can be said of X (B, n, c) without computing it.

X_i = sum_j t_ij v_j + Z_i: known vectors v_j that all tokens share, with a weight for each token, and a Gaussian part
whose channels are independent and alike. Random weights keep this form; the known part goes through the actual ones.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Source:
    """Gaussian rows Z (m rows) with covariance K (B, m, m) in every channel; two sources are independent."""

    K: Tensor


@dataclass(frozen=True, eq=False)
class Law:
    """random: matrices T (B, n, m) on sources, Z = sum_s T_s Z_s. known: weights t (B, n) and vectors v (B, c)."""

    random: dict[Source, Tensor]
    known: tuple[tuple[Tensor, Tensor], ...] = ()
    root: tuple["Law", float] | None = field(default=None)  # the law that this one is a multiple of

    @classmethod
    def fresh(cls, K: Tensor, known: tuple[tuple[Tensor, Tensor], ...] = ()) -> "Law":
        """A Gaussian part of covariance K that nothing else shares."""
        return cls({Source(K): torch.eye(K.shape[-1], dtype=K.dtype).expand_as(K)}, known)

    def gaussian(self) -> Tensor:
        """The covariance of the Gaussian part, (B, n, n)."""
        parts = [T @ source.K @ T.mT for source, T in self.random.items()]
        return torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    def shared(self) -> Tensor:
        """The overlaps of the known part, a mean over channels, (B, n, n)."""
        if not self.known:
            return torch.zeros_like(self.gaussian())
        t, v = self._stacked_known()
        return t @ (v @ v.mT / v.shape[-1]) @ t.mT

    def _stacked_known(self) -> tuple[Tensor, Tensor]:
        """Weights (B, n, k) and vectors (B, k, c)."""
        t = torch.stack(torch.broadcast_tensors(*(t for t, _ in self.known)), -1)
        return t, torch.stack(torch.broadcast_tensors(*(v for _, v in self.known)), -2)

    def overlaps(self) -> Tensor:
        """S_ij = x_i . x_j / c, its mean: (B, n, n)."""
        return self.gaussian() + self.shared()

    def energies(self) -> tuple[Tensor, Tensor]:
        """Common and centred energy of the tokens, per channel, (B,) each: t_div = centred / (common + centred)."""
        G = self.gaussian()
        n = G.shape[-1]
        whole = self.overlaps()
        spread = [t - t.mean(-1, keepdim=True) for t, _ in self.known]  # zero for vectors that all tokens share alike
        rest = Law({}, tuple(zip(spread, (v for _, v in self.known), strict=True))).shared() if self.known else 0 * G
        centred = G.diagonal(dim1=-2, dim2=-1).sum(-1) - G.sum((-2, -1)) / n + rest.diagonal(dim1=-2, dim2=-1).sum(-1)
        return whole.sum((-2, -1)) / n, centred.clamp(min=0)

    def plus(self, other: "Law", factor: float = 1.0) -> "Law":
        """X + factor Y; a law of one token is added to every token."""
        n = max(self.tokens, other.tokens)
        random = {source: T.expand(*T.shape[:-2], n, -1) for source, T in self.random.items()}
        for source, T in other.random.items():
            more = factor * T.expand(*T.shape[:-2], n, -1)
            random[source] = random[source] + more if source in random else more
        known = [(t.expand(*t.shape[:-1], n), v) for t, v in self.known]
        for t, v in other.known:
            same = [i for i, (_, mine) in enumerate(known) if mine is v]
            if same:
                known[same[0]] = (known[same[0]][0] + factor * t, v)
            else:
                known.append((factor * t.expand(*t.shape[:-1], n), v))
        return Law(random, tuple(known))

    @property
    def tokens(self) -> int:
        return next(iter(self.random.values())).shape[-2]

    def times(self, factor: float) -> "Law":
        law, before = self.root or (self, 1.0)
        random = {source: factor * T for source, T in self.random.items()}
        return Law(random, tuple((factor * t, v) for t, v in self.known), (law, before * factor))

    def mixed(self, M: Tensor) -> "Law":
        """M X: every token a sum of tokens, M (B, m, n)."""
        random = {source: M @ T for source, T in self.random.items()}
        return Law(random, tuple(((M @ t.unsqueeze(-1)).squeeze(-1), v) for t, v in self.known))

    @staticmethod
    def stacked(first: "Law", second: "Law") -> "Law":
        """The tokens of one law, and then those of another."""
        n, m = first.tokens, second.tokens
        one, two = torch.eye(n + m, dtype=torch.float64).unsqueeze(0).split([n, m], -1)
        return first.mixed(one).plus(second.mixed(two))

    def weighed(self, D: Tensor) -> "Law":
        """Every token times its own number, D (B, n)."""
        random = {source: D.unsqueeze(-1) * T for source, T in self.random.items()}
        return Law(random, tuple((D * t, v) for t, v in self.known))

    def scaled(self, weight: Tensor) -> "Law":
        """Every channel times its own number, weight (c,), or that of its place in a head, weight (c / h,)."""
        rms = float(weight.square().mean().sqrt())
        random = {source: rms * T for source, T in self.random.items()}
        return Law(random, tuple((t, v * weight.repeat(max(1, v.shape[-1] // len(weight)))) for t, v in self.known))

    def shifted(self, bias: Tensor) -> "Law":
        """All tokens plus one vector, bias (c,)."""
        if not bool(bias.any()):
            return self
        t = torch.ones(next(iter(self.random.values())).shape[:-1], dtype=bias.dtype)
        return Law(self.random, (*self.known, (t, bias.expand(t.shape[0], -1))))

    def through(self, W: Tensor, bias: Tensor | None) -> "Law":
        """X W^T + bias for a matrix W (out, c) whose rows are random to the Gaussian part: |W|^2 / out is its gain."""
        gain = float(W.square().sum()) / W.shape[0]
        law = Law.fresh(gain * self.gaussian(), tuple((t, v.expand(-1, W.shape[1]) @ W.T) for t, v in self.known))
        return law if bias is None else law.shifted(bias)

    def drawn_through(self, gain: float, bias: float) -> "Law":
        """X W^T + b for W and b that are not known: what all tokens share stays shared, in a direction by chance."""
        return Law.fresh(gain * self.overlaps() + bias)

    def about_mean(self) -> "Law":
        """The same overlaps with one source and one known vector, the mean token: what differs is Gaussian again."""
        return self._onto(torch.ones(self.tokens, 1, dtype=torch.float64) / self.tokens**0.5)

    def settled(self) -> "Law":
        """The same overlaps with one source and the few known vectors that attention hands on most."""
        return self._onto(modes(self.tokens))

    def brief(self) -> "Law":
        """The same sources, which another law may share, and few known vectors."""
        few = Law({}, self.known)._onto(modes(self.tokens)) if self.known else Law({})
        return Law(self.random | few.random, few.known)

    def _onto(self, Q: Tensor) -> "Law":
        """Keep of the known part what lies along Q (n, r), orthonormal; the rest of it becomes Gaussian."""
        if not self.known:
            return Law.fresh(self.gaussian())
        t, v = self._stacked_known()
        kept = (Q.T @ t) @ v  # (B, r, c)
        known = tuple((q.expand(t.shape[:-1]), kept[:, k]) for k, q in enumerate(Q.T))
        lost = self.shared() - Q @ (kept @ kept.mT / v.shape[-1]) @ Q.T
        return Law.fresh(self.gaussian() + lost if self.random else lost, known)


@lru_cache
def modes(n: int, most: int = 6) -> Tensor:
    """Orthonormal weights over n tokens, (n, r): the mean, and what prefix means keep most of (causal attention)."""
    prefix = torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1, dtype=torch.float64).unsqueeze(-1)
    ones = torch.ones(n, 1, dtype=torch.float64)
    leading = torch.linalg.svd(prefix).Vh[: min(most, n) - 1].T
    return torch.linalg.qr(torch.cat([ones, leading], 1)).Q
