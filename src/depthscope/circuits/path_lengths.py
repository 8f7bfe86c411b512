"""The PathLengths record: what the paths of every length contribute to a model's output."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.records import Record
from depthscope.theory.path_counts import PathCounts, path_counts

LOG_10 = math.log(10)
FAINT = 0.1  # share of all lengths together below which the verdict does not divide by it
ROUNDING = 1e-14  # a relative residual below this is not told from 0 in float64
FORMS = {
    "secant": "the whole model, its attention, norms and activations held at their values (secants)",
    "tangent": "the whole model, its attention and norms held at their values, activations at their tangents",
    "attention": "attention, as in the whole model, and skips alone: no norms, no feed-forward networks, no biases",
}


@dataclass(frozen=True, eq=False)
class PathLengths(Record):
    """For paths through exactly 0 .. depth attentions, (depth + 1,) each, mean over sequences, float64.

    Attributes:
        norm: |part| / |output|.
        share: <part, output> / |output|^2. With `constant`, the share of biases and of all else that does not come from
            the tokens that enter block 1 (cross-attention, for example), the shares sum to 1.
        cosine: The cosine of part and output.
        energy: |part|^2 over the sum of |part|^2 of all parts.
        residual: The relative residual |part - 1 x^T| / |part| in Dong et al.'s composite norm; 0 when a part is the
            same for all tokens.
        alignment: |sum of parts| over the sum of |part|: 1 when nothing cancels, near 0 when the parts cancel.
        precision: The relative precision of the numbers, with some margin.
        error: By how much the sum of all parts misses the output.
        response_error: When the tokens that enter change by 1%, how much of the change of the output the frozen model
            misses (NaN for form "attention").
        drawn: Single paths (circuits/sampled.py), if they were asked for.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> ds.paths(model, X).norm.shape  # of length 0, 1, 2
        torch.Size([3])
    """

    FORMAT = "depthscope.paths"

    model: str
    form: str
    heads: list[int]
    tokens: int
    samples: int
    norm: Tensor
    share: Tensor
    cosine: Tensor
    energy: Tensor
    residual: Tensor
    constant: float
    constant_norm: float
    output_residual: float
    alignment: float
    precision: float
    error: float
    response_error: float
    drawn: dict[str, Tensor] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        return len(self.heads)

    @property
    def counts(self) -> PathCounts:
        """How many paths there are."""
        return path_counts(heads=self.heads)

    @property
    def mean_length(self) -> float:
        """The mean length of paths, weighted by the size of each length's part; counts.mean_length: by number."""
        weights = self.norm.nan_to_num() / self.norm.nan_to_num().sum()
        return float(weights @ torch.arange(self.depth + 1, dtype=torch.float64))

    @property
    def floor(self) -> float:
        """Parts of a norm below it are rounding: they are differences from the constant."""
        return self.precision * self.constant_norm

    @property
    def residual_floor(self) -> Tensor:
        """A relative residual below this is rounding, (depth + 1,): of the part, or of the constant beside it."""
        return (self.precision + self.floor / self.norm).nan_to_num(torch.inf, posinf=torch.inf).clamp(min=ROUNDING)

    @property
    def verdict(self) -> str:
        """One sentence: up to which length the output is made, and how few paths that are."""
        text = self._reach() + (
            f" A path drawn at random goes through {self.counts.mean_length:.1f} attentions; weighted by what they "
            f"contribute, the mean is {self.mean_length:.1f}."
        )
        told = (self.residual_floor < 0.1).nonzero()
        last = int(told.max()) if len(told) else 0
        alike = float(torch.maximum(self.residual, self.residual_floor)[last])
        if alike < 0.1:
            is_told = bool(self.residual[last] > self.residual_floor[last])
            same = f"relative residual {alike:.1g}" if is_told else "relative residual 0, but for rounding"
            which = "the longest paths add" if last == self.depth else f"paths through {last} attentions add"
            text += f" What {which} is nearly the same for all tokens ({same})."
        return text

    def _reach(self) -> str:
        """Up to which length the output is made; nothing where too little of it comes from the tokens to be shared."""
        whole = float(self.share.sum())
        if whole < FAINT:
            tokens = f"{round(whole, 2) + 0.0:.0%}"
            return (
                f"Biases make {self.constant:.0%} of the output; along it, what comes from the tokens is {tokens}, too "
                "little to be shared among lengths."
            )
        made = self.share.cumsum(0) / whole
        reach = min(k for k in range(self.depth + 1) if bool((made[k:] >= 0.9).all()))
        few = float(torch.logsumexp(self.counts.log10_shares[: reach + 1] * LOG_10, 0)) / LOG_10
        through = f"Paths through at most {reach} of {self.depth} attentions make" if reach else "Skips alone make"
        back = ", some of which longer paths take back," if float(made[reach]) > 1.05 else ""
        return (
            f"{through} {float(made[reach]):.0%} of what reaches the output from the tokens{back} and are "
            f"{_portion(few)} of all paths."
        )

    def gist(self) -> str:
        return f"{self.model}, {self.depth} blocks: {self.verdict}"

    def derived(self) -> dict[str, Any]:
        return {"log10_counts": self.counts.log10_counts, "verdict": self.verdict}


def _portion(log10: float) -> str:
    share = 10**log10
    return f"{share:.0%}" if share >= 0.1 else f"{share:.2%}" if share >= 1e-4 else f"one in 10^{-log10:.0f}"
