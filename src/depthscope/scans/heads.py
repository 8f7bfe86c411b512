"""The heads of a scan, batch by batch: means of their numbers, the largest errors, and what a reader should know."""

import math
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor
from torch.nn.functional import pad

from depthscope.scans.attention_reader import AttentionNumbers
from depthscope.scans.kinds import kind_notes
from depthscope.scans.reading import Reading
from depthscope.scans.running import Running, merged, of_batch
from depthscope.scans.state_numbers import float64

UNCERTAIN = 0.1  # a relative error above this is said aloud
WHY = {
    "delta": "only a few vectors were tried, and they may have missed its direction",
    "lambda_2": "eigenvalues of attention that is far from symmetric move with every rounding, and powers that would "
    "bound them cost too much in a scan beyond 128 tokens (ds.metrics.lambda_2(P) bounds it up to 512)",
}
LEAKING = 1e-3  # attention to padding above this share is said aloud too


@dataclass(frozen=True, eq=False)
class Heads:
    """Numbers of the heads. counts, depth, kinds: of the first batch; the rest of all batches so far."""

    counts: list[int]  # heads of each block, 0 where none was seen
    means: dict[tuple[str, int], Running]  # (quantity, block) -> (h,)
    over_heads: dict[tuple[str, int], Running]  # -> the mean over heads, whose error is not told by theirs
    residuals: dict[str, float]
    kinds: list[str]  # notes on the kind of attention
    lost: list[str]  # quantities that could not be computed somewhere
    leak: float = 0.0
    sampled: int = 0
    without_tokens: bool = False

    def __add__(self, other: "Heads") -> "Heads":
        return Heads(
            self.counts,
            merged(self.means, other.means, add),
            merged(self.over_heads, other.over_heads, add),
            merged(self.residuals, other.residuals, max),
            self.kinds,
            list(dict.fromkeys([*self.lost, *other.lost])),
            max(self.leak, other.leak),
            max(self.sampled, other.sampled),
            self.without_tokens or other.without_tokens,
        )

    @property
    def quantities(self) -> list[str]:
        return list(dict.fromkeys(name for name, _ in self.means))

    def tables(self) -> dict[str, Tensor]:
        """Quantity -> (depth, h), NaN beyond a block's own heads."""
        most = max((len(one.mean) for one in self.means.values()), default=0)

        def row(name: str, block: int) -> Tensor:
            found = self.means.get((name, block))
            mean = torch.full((most,), math.nan, dtype=torch.float64) if found is None else found.mean
            return pad(mean, (0, most - len(mean)), value=math.nan)

        blocks = range(len(self.counts))
        return {name: torch.stack([row(name, block) for block in blocks]) for name in self.quantities}

    def errors(self) -> dict[str, Tensor]:
        """Quantity -> (depth,): the standard error over batches of its mean over heads."""
        nothing = torch.tensor(math.nan, dtype=torch.float64)

        def error(name: str, block: int) -> Tensor:
            return self.over_heads[name, block].error if (name, block) in self.over_heads else nothing

        blocks = range(len(self.counts))
        return {name: torch.stack([error(name, block) for block in blocks]) for name in self.quantities}

    def notes(self) -> list[str]:
        notes = [
            f"{name} is {_certainty(value)} in some head: {WHY[name]}"
            for name, value in self.residuals.items()
            if name in WHY and value > UNCERTAIN
        ]
        if self.lost:
            notes.append(f"{' and '.join(self.lost)} could not be computed in some head, whose attention is not finite")
        if self.leak > LEAKING:
            notes.append(
                f"attention gives up to {self.leak:.0%} of its weight to padding: the model was not given the mask"
            )
        if self.sampled:
            error = self.residuals["mu_2"]
            notes.append(f"mu_2 is from {self.sampled} random channels (sample=), standard error up to {error:.1%}")
        if self.without_tokens:
            notes.append("omega and mu are not known, because the tokens that attention reads could not be found")
        notes += self.kinds
        missing = self.counts.count(0)
        if self.means and missing:
            notes.append(f"{missing} of {len(self.counts)} blocks have no self-attention that could be seen")
        return notes


def heads_of(reading: Reading) -> Heads:
    """The heads of one batch."""
    rows = reading.attentions()
    found = [numbers for numbers in rows if numbers is not None]
    means, over_heads = {}, {}
    for block, numbers in enumerate(rows):
        for name, values in numbers.values.items() if numbers is not None else ():
            means[name, block] = one = of_batch(float64(values).T)
            over_heads[name, block] = Running(one.mean.mean(), one.weight, weight_squares=one.weight_squares)
    residuals: dict[str, float] = {}
    for numbers in found:
        residuals = merged(residuals, numbers.residuals, max)
    return Heads(
        counts=[0 if numbers is None else numbers.heads for numbers in rows],
        means=means,
        over_heads=over_heads,
        residuals=residuals,
        kinds=kind_notes(reading),
        lost=[name for name in residuals if name in WHY and any(_is_lost(numbers, name) for numbers in found)],
        leak=max((numbers.leak for numbers in found), default=0.0),
        sampled=max((numbers.sampled for numbers in found), default=0),
        without_tokens=any(numbers.without_tokens for numbers in found),
    )


def _is_lost(numbers: AttentionNumbers, name: str) -> bool:
    return any(math.isnan(value) for row in numbers.values[name] for value in row)


def _certainty(error: float) -> str:
    """A relative error in words: from 1 on nothing bounds the value from below."""
    return f"not known better than {error:.0%}" if error < 1 else "an estimate that nothing bounds from below"
