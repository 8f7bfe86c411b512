"""The law of tokens: what can be said of X (B, n, c) without computing it.

X_i = sum_j t_ij v_j + Z_i: known vectors v_j that all tokens share, with a weight for each token, and a Gaussian part
whose channels are independent and alike. Random weights keep this form; the known part goes through the actual ones.
Where blocks share their weights, what they make of the Gaussian part's channels is followed too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from depthscope.laws.doubt import Doubt, by_structure, by_width, effective_width, of_strangers
from depthscope.laws.gaussian_source import GaussianPart, GaussianSource, between_channels, profile_of
from depthscope.laws.token_modes import identity, modes, own_sizes


@dataclass(frozen=True, eq=False)
class Law:
    """random: matrices T (B, n, m) on parts, Z = sum_s T_s Z_s M_s^T. known: weights t (B, n), vectors v (B, c)."""

    random: dict[GaussianPart, Tensor]
    known: tuple[tuple[Tensor, Tensor], ...] = ()
    root: tuple["Law", float] | None = field(default=None)  # the law that this one is a multiple of
    covariance: Tensor | None = field(default=None)  # of the Gaussian part, where a step has it for little
    doubt: Doubt | None = field(default=None)  # how sure it is, where that is followed

    @classmethod
    def fresh(
        cls, K: Tensor, known: tuple[tuple[Tensor, Tensor], ...] = (), followed: bool = False, M: Tensor | None = None
    ) -> "Law":
        """A Gaussian part of covariance K that nothing else shares."""
        part = GaussianPart(GaussianSource(K), followed, M)
        return cls({part: identity(K.shape[-1]).expand_as(K)}, known, covariance=K if M is None else None)

    @classmethod
    def of_tokens(cls, x: Tensor, followed: bool = False) -> "Law":
        """The law of tokens x (B, n, c) that are there: a few weighted means are known; the rest has their overlaps.

        The means are of tokens at one size, so that a small token holds little of them.
        """
        return cls.of_draws(x.unsqueeze(0), followed)

    @classmethod
    def of_draws(cls, x: Tensor, followed: bool = False) -> "Law":
        """The law of tokens that were drawn several times, x (draws, B, n, c).

        Means over draws are known, since weights alone make them; what changes from draw to draw is Gaussian.
        """
        X = x.detach().cpu().double()
        size = own_sizes(X.square().mean(-1).mean(0))
        Q = modes(X.shape[-2])
        vectors = Q.T @ (X.mean(0) / size.unsqueeze(-1))  # (B, r, c)
        known = tuple((q * size, vectors[:, k]) for k, q in enumerate(Q.T))
        R = size.unsqueeze(-1) * Q
        return cls.fresh(((X @ X.mT).mean(0) - R @ (vectors @ vectors.mT) @ R.mT) / X.shape[-1], known, followed)

    @property
    def followed(self) -> bool:
        """Whether matrices that come back are remembered."""
        return any(part.followed for part in self.random)

    def gaussian(self) -> Tensor:
        """The covariance of the Gaussian part, (B, n, n)."""
        return self._summed if self.covariance is None else self.covariance

    @cached_property
    def _summed(self) -> Tensor:
        """That covariance where no step has given it: parts of one source overlap, others do not."""
        overlaps = [
            a.overlap(b) * (T @ a.source.K @ R.mT)
            for a, T in self.random.items()
            for b, R in self.random.items()
            if a.source is b.source
        ]
        return torch.stack(torch.broadcast_tensors(*overlaps)).sum(0)

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
        return self.gaussian() + self.shared() if self.known else self.gaussian()

    def energies(self, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Common and centred energy of the tokens, per channel, (B,) each: t_div = centred / (common + centred).

        mask (B, n): True for tokens that count, None for all.
        """
        G, n = self.gaussian(), self.tokens
        m = torch.ones(1, n, dtype=G.dtype) if mask is None else mask.to(G)
        count = m.sum(-1)

        def common(S: Tensor) -> Tensor:
            return ((S @ m.unsqueeze(-1)).squeeze(-1) * m).sum(-1) / count

        def own(S: Tensor) -> Tensor:
            return (S.diagonal(dim1=-2, dim2=-1) * m).sum(-1)

        spread = [t - (t * m).sum(-1, keepdim=True) / count.unsqueeze(-1) for t, _ in self.known]
        rest = Law({}, tuple(zip(spread, (v for _, v in self.known), strict=True))).shared() if self.known else 0 * G
        return common(self.overlaps()), (own(G) - common(G) + own(rest)).clamp(min=0)

    @cached_property
    def pair(self) -> Tensor:
        """Common and centred energy, (B, 2)."""
        return torch.stack(self.energies(), -1)

    @cached_property
    def known_energy(self) -> Tensor:
        """The common energy of what is known, (B,)."""
        if not self.known:
            return self.gaussian().new_zeros(1)
        t, v = self._stacked_known()
        return (t.sum(-2).unsqueeze(-2) @ v).square().mean((-2, -1)) / self.tokens

    def doubted(self) -> "Law":
        """This law at the beginning of a block: from here on it is followed how sure it is."""
        return replace(self, doubt=Doubt.at_start(self.pair))

    def _after(self, old: "Law", kept: Tensor | float = 1.0) -> "Law":
        """This law as what a step made of another one; kept: the share of the common energy that is the old one's."""
        return self if old.doubt is None else replace(self, doubt=old.doubt.moved(old.pair, self.pair, kept))

    def plus(self, other: "Law", factor: float = 1.0) -> "Law":
        """X + factor Y; a law of one token is added to every token."""
        if self.tokens != other.tokens:
            n = max(self.tokens, other.tokens)
            return self._repeated(n).plus(other._repeated(n), factor)
        random = dict(self.random)
        for source, T in other.random.items():
            random[source] = random[source] + factor * T if source in random else factor * T
        known = list(self.known)
        for t, v in other.known:
            same = [i for i, (_, mine) in enumerate(known) if mine is v]
            if same:
                known[same[0]] = (known[same[0]][0] + factor * t, v)
            else:
                known.append((factor * t, v))
        strangers = {s.source for s in self.random}.isdisjoint(s.source for s in other.random)
        covariance = self.gaussian().add(other.gaussian(), alpha=factor**2) if strangers else None
        found = Law(random, tuple(known), covariance=covariance)
        if other.random.keys() <= self.random.keys():  # tokens of this very law, as their mean: no overlap is neglected
            return found._after(self)
        return replace(found, doubt=self._doubt_with(other, factor))

    def _doubt_with(self, other: "Law", factor: float) -> Doubt | None:
        """Of a sum, as if of strangers: whatever overlap they have is neglected, but for what is known of both.

        Parts of one source have an overlap that is followed, but it is a mean too.
        """
        if self.doubt is None or not self.known:
            return self.doubt
        mine, others = (self.overlaps(), self.known_energy), (other.overlaps(), other.known_energy)
        chance = factor**2 * of_strangers(mine, others, self.known[0][1].shape[-1])
        return self.doubt.plus(other.doubt, factor**2).with_chance("width", chance)

    def _repeated(self, n: int) -> "Law":
        """n tokens that are all the one of this law."""
        if self.tokens == n:
            return self
        random = {source: T.expand(*T.shape[:-2], n, -1) for source, T in self.random.items()}
        known = tuple((t.expand(*t.shape[:-1], n), v) for t, v in self.known)
        covariance = self.gaussian().expand(-1, n, n)
        return Law(random, known, covariance=covariance, doubt=None if self.doubt is None else self.doubt.times(n))

    @property
    def tokens(self) -> int:
        return next(iter(self.random.values())).shape[-2]

    def times(self, factor: float) -> "Law":
        law, before = self.root or (self, 1.0)
        random = {source: factor * T for source, T in self.random.items()}
        known = tuple((factor * t, v) for t, v in self.known)
        doubt = None if self.doubt is None else self.doubt.times(factor**2)
        return Law(random, known, (law, before * factor), factor**2 * self.gaussian(), doubt)

    def mixed(self, M: Tensor) -> "Law":
        """M X: every token a sum of tokens, M (B, m, n)."""
        random = {source: M @ T for source, T in self.random.items()}
        known = tuple(((M @ t.unsqueeze(-1)).squeeze(-1), v) for t, v in self.known)
        found = Law(random, known, covariance=M @ self.gaussian() @ M.mT)
        if self.doubt is None:
            return found
        handed_on = M.sum(-1).mean(-1).square() * (M.shape[-2] / M.shape[-1])  # of tokens that are all alike
        return found._after(self, (handed_on * self.pair[..., 0] / found.pair[..., 0].clamp(min=1e-300)).clamp(max=1))

    @staticmethod
    def stacked(first: "Law", second: "Law") -> "Law":
        """The tokens of one law, and then those of another."""
        n, m = first.tokens, second.tokens
        one, two = torch.eye(n + m, dtype=torch.float64).unsqueeze(0).split([n, m], -1)
        return first.mixed(one).plus(second.mixed(two))

    def weighed(self, D: Tensor) -> "Law":
        """Every token times its own number, D (B, n)."""
        random = {source: D.unsqueeze(-1) * T for source, T in self.random.items()}
        covariance = D.unsqueeze(-1) * self.gaussian() * D.unsqueeze(-2)
        found = Law(random, tuple((D * t, v) for t, v in self.known), covariance=covariance)._after(self)
        return found if found.doubt is None else replace(found, doubt=found.doubt.of_one_size(found.pair))

    def channelwise(self, f: Callable[[Tensor], Tensor]) -> "Law":
        """Channels in another order or fewer of them, f on vectors (..., c)."""
        moved = [(*s.channelwise(f), T) for s, T in self.random.items()]
        random = {s: T if factor == 1 else factor * T for s, factor, T in moved}
        same = not self.followed and all(factor == 1 for _, factor, _ in moved)
        known = tuple((t, f(v)) for t, v in self.known)
        return Law(random, known, covariance=self.gaussian() if same else None)._after(self)

    def scaled(self, weight: Tensor) -> "Law":
        """Every channel times its own number, weight (c,), or that of its place in a head, weight (c / h,)."""
        if bool((weight == 1).all()):  # as every norm starts
            return self
        moved = [(*s.scaled(_wide(weight, s.profile)), T) for s, T in self.random.items()]
        random = {s: factor * T for s, factor, T in moved}
        return Law(random, tuple((t, v * _wide(weight, v)) for t, v in self.known))._after(self)

    def shifted(self, bias: Tensor) -> "Law":
        """All tokens plus one vector, bias (c,)."""
        if not bool(bias.any()):
            return self
        t = torch.ones(next(iter(self.random.values())).shape[:-1], dtype=bias.dtype)
        known = (*self.known, (t, bias.expand(t.shape[0], -1)))
        return Law(self.random, known, covariance=self.gaussian(), doubt=self.doubt)

    def through(self, W: Tensor, bias: Tensor | None) -> "Law":
        """X W^T + bias for a matrix W (out, c) whose rows are random to the Gaussian part: |W|^2 / out is its gain."""
        known = tuple((t, v.expand(-1, W.shape[1]) @ W.T) for t, v in self.known)
        random = {part.through(W): T for part, T in self.random.items() if part.followed}
        strangers = {part: T for part, T in self.random.items() if not part.followed}
        if strangers:
            rest = self if not random else Law(strangers)  # whose covariance may be there already
            profile = profile_of(strangers)
            energies = W.square().sum(-1) if profile is None else W.square() @ _wide(profile, W)
            gain = float(energies.mean())
            source = GaussianSource(gain * rest.gaussian())
            part = GaussianPart(source, profile=energies / max(gain, 1e-300))
            random[part] = identity(source.K.shape[-1]).expand_as(source.K)
        law = Law(random, known)._after(self)
        if law.doubt is not None:
            width, G = effective_width(W), law.gaussian()
            doubt = law.doubt.with_chance("width", by_width(G, law.known_energy, width))
            law = replace(law, doubt=doubt.with_chance("structure", by_structure(G, W, width)))
        return law if bias is None else law.shifted(bias)

    def drawn_through(self, gain: float, bias: float) -> "Law":
        """X W^T + b for W and b that are not known: what all tokens share stays shared, in a direction by chance."""
        S = gain * self.overlaps()
        return Law.fresh(S + bias if bias else S)

    def about_mean(self) -> "Law":
        """The same overlaps with one known vector, the mean token: what differs otherwise is Gaussian again."""
        one = torch.ones(1, self.tokens, dtype=torch.float64)
        return self._onto(one.T / self.tokens**0.5, one)

    def settled(self) -> "Law":
        """The same overlaps with one source and the few known vectors that attention hands on most."""
        law = self.brief()
        if self.followed and law.known:
            return Law.fresh(law.gaussian(), law.known, True, between_channels(law.random, law.known[0][1].shape[-1]))
        K = law.gaussian()
        part = GaussianPart(GaussianSource(K), profile=profile_of(law.random))
        return Law({part: identity(K.shape[-1]).expand_as(K)}, law.known, covariance=K)

    def brief(self) -> "Law":
        """The same sources, which another law may share, and few known vectors."""
        return self._onto(modes(self.tokens), own_sizes(self.overlaps().diagonal(dim1=-2, dim2=-1)))

    def _onto(self, Q: Tensor, size: Tensor) -> "Law":
        """Keep of the known part what lies along Q (n, r), orthonormal, of tokens over their size (B, n).

        The rest of it becomes Gaussian.
        """
        if not self.known:
            return self
        t, v = self._stacked_known()
        kept = (Q.T @ (t / size.unsqueeze(-1))) @ v  # (B, r, c)
        known = tuple(((q * size).expand(t.shape[:-1]), kept[:, k]) for k, q in enumerate(Q.T))
        R = size.unsqueeze(-1) * Q
        lost = self.shared() - R @ (kept @ kept.mT / v.shape[-1]) @ R.mT
        rest = Law.fresh(lost, known, self.followed)
        return Law(self.random | rest.random, known, doubt=self.doubt)


def _wide(weight: Tensor, like: Tensor | None) -> Tensor:
    """A number for each channel out of one for each place in a head, (c / h,) -> (c,)."""
    return weight if like is None else weight.repeat(max(1, like.shape[-1] // len(weight)))
