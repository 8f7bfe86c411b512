"""Hidden units on laws: products of functions of Gaussian laws, as feed-forward networks have them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from depthscope.laws.law import Law
from depthscope.theory.kernels import deviations, hermite_coefficients, series

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Units:
    """f_1(X_1) f_2(X_2) ..., entry by entry, of independent laws X_1, X_2, ...: GELU(X) or SiLU(X_1) X_2."""

    factors: tuple[tuple[Law, Function], ...]

    @classmethod
    def of(cls, law: "Law | Units") -> "Units":
        """A law is a unit of the law it is a multiple of."""
        if isinstance(law, Units):
            return law
        root, factor = law.root or (law, 1.0)
        return cls(((root, lambda u: factor * u),))

    def then(self, f: Function) -> "Units":
        """f of the units; there must be one factor."""
        ((law, g),) = self.factors
        return Units(((law, lambda u: f(g(u))),))

    def times(self, other: "Units | float") -> "Units":
        if not isinstance(other, Units):
            (law, f), *rest = self.factors
            return Units(((law, lambda u: other * f(u)), *rest))
        factors = list(self.factors)
        for law, g in other.factors:
            same = [i for i, (mine, _) in enumerate(factors) if mine is law]
            if same:
                factors[same[0]] = (law, _product(factors[same[0]][1], g))
            else:
                factors.append((law, g))
        return Units(tuple(factors))

    def plus(self, other: "Units", factor: float = 1.0) -> "Units":
        ((law, f),), ((same, g),) = self.factors, other.factors
        if law is not same:
            raise ValueError("a sum of functions of two laws")
        return Units(((law, lambda u: f(u) + factor * g(u)),))

    def settled(self) -> Law:
        """A law with the same mean and the same overlaps of what differs between tokens.

        Exact for tokens of equal size, as a norm makes them; others are taken to scale the units in proportion, as they
        do for ReLU.
        """
        mean = torch.ones(1, 1, dtype=torch.float64)
        sizes = torch.ones(1, dtype=torch.float64)
        moments, correlations = [], []
        for one, f in self.factors:
            law = replace(one, doubt=None)  # it is looked at in the end
            size = law.overlaps().diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).sqrt()  # (B, n)
            size = (size / size.square().mean(-1, keepdim=True).sqrt()).clamp(min=1e-3)
            alike = bool((size - 1).abs().max() < 1e-12)  # as a norm leaves them: there is nothing to weigh
            base = (law if alike else law.weighed(1 / size)).about_mean()
            C = base.gaussian()
            sigma, rho = deviations(C)
            typical = sigma.square().mean(-1, keepdim=True).sqrt()  # (B, 1)
            offsets = torch.zeros(C.shape[0], 1, dtype=C.dtype)
            if base.known:
                offsets = base.known[0][0][:, :1] * base.known[0][1]
            a = hermite_coefficients(f, typical.expand_as(offsets), offsets)  # (B, c, k)
            mean, sizes = mean * a[..., 0], sizes if alike else sizes * size
            moments.append(a.square())
            correlations.append(rho)
        overlaps = _expectation(moments, correlations)
        common = torch.stack(torch.broadcast_tensors(*(m[..., 0] for m in moments))).prod(0).mean(-1)[:, None, None]
        ones = torch.ones(overlaps.shape[:2], dtype=overlaps.dtype)
        units = Law.fresh(overlaps - common, ((ones, mean),))
        if base.followed and len(self.factors) == 1:  # what is linear in X stays with its parts
            sure = typical.clamp(min=1e-8)  # a slope over less would be a quotient of rounding errors
            slopes = hermite_coefficients(f, sure.expand_as(offsets), offsets)[..., 1] / sure
            linear = Law(base.random).scaled(slopes.mean(0))
            rest = overlaps - common - moments[0][..., 1].mean(-1)[:, None, None] * correlations[0]
            units = Law(linear.random | Law.fresh(rest, followed=True).random, units.known)
        units = units if sizes.ndim == 1 else units.weighed(sizes)
        return _doubted(units, self.factors[0][0])


def _doubted(units: Law, law: Law) -> Law:
    """How sure units of a law are: equal tokens stay equal, so that differences come from differences alone."""
    if law.doubt is None:
        return units
    whole = units.pair.sum(-1) / law.pair.sum(-1).clamp(min=1e-300)
    kept = (whole * law.pair[..., 0] / units.pair[..., 0].clamp(min=1e-300)).clamp(max=1)
    return replace(units, doubt=law.doubt.moved(law.pair, units.pair, kept))


def _product(f: Function, g: Function) -> Function:
    return lambda u: f(u) * g(u)


def _expectation(moments: list[Tensor], correlations: list[Tensor]) -> Tensor:
    """mean_j prod_f sum_k a_fk(j)^2 rho_f^k, moments (B, c, k) of each factor -> (B, n, n)."""
    first, *others = moments
    if not others:
        return series(first.mean(1)[:, None, None, :], correlations[0])
    (second,) = others
    keep = int((second.abs().amax((0, 1)) > 1e-14 * second.abs().max()).nonzero().max()) + 1  # a linear factor has two
    c = max(first.shape[1], second.shape[1])
    M = torch.einsum("bck,bcl->bkl", first.expand(-1, c, -1), second[..., :keep].expand(-1, c, -1)) / c
    inner = [series(M[:, None, None, :, level], correlations[0]) for level in range(keep)]
    return sum(part * correlations[1] ** level for level, part in enumerate(inner))  # type: ignore[return-value]
