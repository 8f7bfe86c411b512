"""Is a difference between two arms more than noise? Paired over seeds: equal weights and data order on both sides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

from depthscope.errors import MissingExtraError
from depthscope.extras import install

LEVEL = 0.05
FEWEST = 3  # seeds: with two, any difference has a t-test of one degree of freedom, which says next to nothing
MOST_FLIPS = 16  # seeds up to which all sign flips are tried: 65,536 sums


@dataclass(frozen=True)
class Paired:
    """The differences a - b of paired values: their mean, their spread (sample deviation), and two p-values.

    p_t is of the paired t-test, p_flip of the exact sign-flip test, which assumes only that noise has no preferred
    sign but cannot fall below 2^(1 - count). p decides: p_t where there is a spread or a resolution; p_flip where the
    t-test would divide by zero. All are nan when there are too few pairs, or a value is not finite.
    """

    count: int
    mean: float
    spread: float
    p_t: float
    p_flip: float

    @property
    def p(self) -> float:
        return self.p_flip if math.isnan(self.p_t) else self.p_t


def paired(a: Sequence[float], b: Sequence[float], resolution: float = 0.0) -> Paired:
    """Compare two arms by values of the same seeds, in the same order.

    resolution: the smallest step of a value, 1 / n for an accuracy over n images. Differences that lie closer together
    than that do so by rounding, so the t-test takes the spread to be at least as large.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    count = len(differences)
    if not all(map(math.isfinite, differences)):
        return Paired(count, math.nan, math.nan, math.nan, math.nan)
    mean = math.fsum(differences) / count if count else math.nan
    spread = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (count - 1)) if count > 1 else math.nan
    if count < FEWEST:
        return Paired(count, mean, spread, math.nan, math.nan)
    size = max(map(abs, differences))
    if spread <= 1e-9 * size:  # all equal but for rounding: of all flips only two reach as far, all when they are zero
        spread, p_flip = 0.0, 2.0 ** (1 - count) if size else 1.0
    else:
        p_flip = sign_flip_p(differences)
    least = max(spread, resolution)
    p_t = student_p(mean / least * math.sqrt(count), count - 1) if least else math.nan
    return Paired(count, mean, spread, p_t, p_flip)


def chance_gap(count: int) -> float:
    """How far apart two equal shares of `count` each come out by chance, in 5 % of cases at most: 1.96 sqrt(1/(2 n)).

    For an accuracy over so many images: 0.073 for the 360 of digits. It is the largest such gap, that of shares 1/2.
    """
    return NormalDist().inv_cdf(1 - LEVEL / 2) * math.sqrt(0.5 / count)


def student_p(t: float, degrees: int) -> float:
    """P(|T| > |t|) for Student's T with so many degrees of freedom: twice its distribution at -|t|."""
    try:
        from scipy.special import stdtr
    except ImportError:
        raise MissingExtraError(f"p-values: need scipy. {install('train')}") from None
    return float(2 * stdtr(degrees, -abs(t)))


def sign_flip_p(differences: Sequence[float]) -> float:
    """The share of all sign flips of the differences whose sum is as far from zero as theirs, or further.

    nan above MOST_FLIPS differences, where the t-test needs no second opinion, and when one is not finite.
    """
    if len(differences) > MOST_FLIPS or not all(map(math.isfinite, differences)):
        return math.nan
    seen = abs(math.fsum(differences))
    least = seen - 1e-12 * math.fsum(map(abs, differences))  # sums in another order differ by rounding
    flips = product((1, -1), repeat=len(differences))
    sums = [abs(math.fsum(s * d for s, d in zip(signs, differences, strict=True))) for signs in flips]
    return sum(one >= least for one in sums) / len(sums)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected (Holm 1979): the chance of any false find stays at the level.

    nan stays nan and does not count.
    """
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    corrected, largest = list(p_values), 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[i] = largest
    return corrected


def verdict(p: float) -> str:
    """A p-value in words."""
    if math.isnan(p):
        return "nothing can be said"
    number = "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
    return f"differs ({number})" if p < LEVEL else f"within noise ({number})"
