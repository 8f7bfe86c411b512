"""The Bounds record: what the theorem says of a model's attention, and what is found."""

import math
from dataclasses import dataclass, field
from typing import Any

from depthscope.records import Record
from depthscope.theory.softmax_perturbation import PRECONDITION

EMPTY = math.log10(2)  # |res(X)| <= 2 |X| whatever X is: a bound above that says nothing


@dataclass(frozen=True)
class BlockBound:
    """One block's attention on the tokens that it read in the model. All logs are log10, means over the sequences.

    D: the largest difference of two scores in a row that tokens' differences make (precondition: 1.256). gamma: the
    paper's, as measured. beta: the paper's, the largest |W_QK|_1 |W_V W_O|_{1,inf} of a head. log_in, log_out:
    |res|_{1,inf} before and after attention, log_size: |SA(X)|_{1,inf}. log_bound: what holds; log_printed: the
    paper's, gamma = 1. exponent: the power with which the residual after follows the one before, 3 in the limit of
    equal tokens. ffn_lower, ffn_upper: the Lipschitz constant of its feed-forward network.
    """

    D: float
    gamma: float
    beta: float
    log_in: float
    log_out: float
    log_size: float
    log_bound: float
    log_printed: float
    exponent: float
    ffn_lower: float
    ffn_upper: float

    @property
    def applies(self) -> bool:
        return self.D <= PRECONDITION

    @property
    def vacuous(self) -> bool:
        return self.log_bound > self.log_size + EMPTY


@dataclass(frozen=True)
class Chain:
    """A network made of the model's attention alone, without norms: from its input on, depth + 1 values each, log10.

    found: |res(X_l)|_{1,inf}, however small; bound: what follows from that of the input, the weights and D of every
    layer; size: |X_l|_{1,inf}.
    """

    found: list[float]
    bound: list[float]
    size: list[float]
    D: list[float]

    @property
    def last(self) -> int:
        """The last state whose residual is known and not zero."""
        return max(k for k, value in enumerate(self.found) if math.isfinite(value))

    @property
    def gone(self) -> int | None:
        """The first state whose tokens are all alike to the last digit; None where they differ."""
        return next((k for k, value in enumerate(self.found) if value == -math.inf), None)

    @property
    def excess(self) -> float:
        """Orders of magnitude between bound and truth, where both are known last."""
        return self.bound[self.last] - self.found[self.last]

    @property
    def vacuous(self) -> bool:
        return self.bound[self.last] > self.size[self.last] + EMPTY


@dataclass(frozen=True)
class Bounds(Record):
    """Dong et al.'s bound on real weights: for each block, and for whole networks of attention, with and without skips.

    Attributes:
        with_ffn: log10 of the bound for attention followed by the feed-forward networks with their upper constants, for
            any D in that network.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> bounds = ds.bounds(model, X)
        >>> len(bounds.blocks), len(bounds.with_ffn)
        (2, 3)
    """

    FORMAT = "depthscope.bounds"
    VERSION = 2  # 1 had null for NaN

    model: str
    samples: int
    tokens: int
    width: int
    heads: int
    blocks: list[BlockBound]
    pure: Chain
    skips: Chain
    with_ffn: list[float]
    notes: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.blocks)

    @property
    def verdict(self) -> str:
        """What the bound says, what is found, and whether the one tells anything about the other."""
        text = f"Pure attention with this model's weights (no skips, feed-forward networks or norms): {self._pure()} "
        end = self.skips.last
        kept = 10 ** (self.skips.found[end] - self.skips.size[end])
        return (
            text
            + f"With its skips {kept:.2g} is left after {end}; there the bound, {power(self.skips.bound[end])}, "
            + ("is vacuous too." if self.skips.vacuous else "tells something.")
        )

    def _pure(self) -> str:
        pure, k = self.pure, self.pure.last
        if pure.gone is not None:
            return (
                f"after {pure.gone} of {self.depth} blocks the bound says {power(pure.bound[pure.gone])}, and nothing "
                "at all is found: the tokens have collapsed into one."
            )
        left = pure.found[k] - pure.size[k]
        if pure.vacuous:
            most = pure.size[k] + EMPTY
            what = (
                f"vacuous by {pure.bound[k] - most:.0f} orders of magnitude (no residual can pass {power(most)}), "
                f"{pure.excess:.0f} above the truth"
            )
        else:
            what = f"it tells something, and is {pure.excess:.0f} orders of magnitude above the truth"
        words = "the tokens have collapsed into one" if left < -3 else "they still differ"
        return (
            f"after {k} of {self.depth} blocks the bound says {power(pure.bound[k])}, found {power(pure.found[k])}: "
            f"{what}. {power(left)} of the tokens is left that differs: {words}."
        )

    def gist(self) -> str:
        said = "vacuous" if self.pure.vacuous else "tells something"
        return f"{self.model}, {self.depth} blocks: the bound on pure attention is {said}"

    def derived(self) -> dict[str, Any]:
        return {"verdict": self.verdict}


def power(log10: float) -> str:
    """A number by its logarithm; as it is where it is of a readable size."""
    if not math.isfinite(log10):
        return "?" if math.isnan(log10) else "0" if log10 < 0 else "inf"
    if -3 <= log10 < 5:
        return f"{10**log10:.3g}"
    return f"10^{log10:.1f}" if abs(log10) < 100 else f"10^{log10:.0f}"
