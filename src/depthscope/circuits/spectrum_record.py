"""The Spectrum record: which blocks smooth and which sharpen, by how much, and the eigenvalues that decide it."""

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from depthscope.records import ComplexTensor, Record
from depthscope.theory.layer_spectrum import VERDICTS


@dataclass(frozen=True, eq=False)
class Spectrum(Record):
    """One row for each block: does it smooth or sharpen?

    If margin > 0, repeating the block would make all tokens alike (smooth, over-smoothing), as fast as exp(-margin
    depth). If margin < 0, what differs between tokens wins (sharpen).

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> ds.spectrum(model, X).margins.shape  # (depth, samples)
        torch.Size([2, 2])
    """

    FORMAT = "depthscope.spectrum"

    model: str
    tokens: int
    width: int
    samples: int
    placement: list[str]  # of the norm that attention goes with: pre, post, none
    eigenvalues: ComplexTensor  # (depth, d): of H = W_V W_O of all heads, with the scale of a norm before attention;
    # (depth, d - 1) where a norm behind the sum takes the channels' mean away
    head_eigenvalues: ComplexTensor  # (depth, heads, d_v): of each head's H, those that are not zero by its shape
    factor: Tensor  # (depth,) what lambda_H is multiplied by: 1 / (size of the tokens x weight of the skip)
    lambda_H: ComplexTensor  # (depth,) the dominating pair
    lambda_A: ComplexTensor
    constant: Tensor  # (depth,) log growth of the constant part for each repetition
    rest: Tensor  # (depth,) the same of what differs between tokens
    margins: Tensor  # (depth, samples) of each sequence, without the scale of a norm behind the sum
    margin_apart: Tensor  # (depth,) the margin where every head keeps its own attention, by repeating the block
    margin_of_weights: Tensor  # (depth,) with tokens of size 1 and a skip of weight 1, as in the paper
    head_margins: Tensor  # (depth, heads), without the scale of a norm behind the sum; NaN beyond a block's own heads
    lowest: Tensor  # (depth, heads) least real part of attention's eigenvalues, mean over sequences
    rank_gap: Tensor  # (depth,) 0: a tie, the only case without rank collapse
    asymmetry: Tensor  # (depth,) |H - H^T| / |H|
    negative_scales: Tensor  # (depth,) share of channels whose norm has a negative scale
    hfc_lfc: Tensor  # (depth + 1,) high over low frequencies = sqrt(t_div / t_sim), mean over sequences
    frequencies: str  # tokens: 1-D along the sequence; patches: 2-D over the image, by length
    response: Tensor  # (depth, F) energy after a block over energy before, lowest frequency first
    tie: float
    notes: list[str] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.constant)

    @property
    def heads(self) -> int:
        return self.head_margins.shape[1]

    @property
    def margin(self) -> Tensor:
        """(depth,) constant - rest."""
        return self.constant - self.rest

    @property
    def verdicts(self) -> list[str]:
        """smooth, sharpen or neither, block by block."""
        return [_word(m, self.tie) for m in self.margin.tolist()]

    @property
    def head_verdicts(self) -> list[list[str]]:
        return [[_word(m, self.tie) for m in row if not math.isnan(m)] for row in self.head_margins.tolist()]

    @property
    def ties(self) -> Tensor:
        """(depth,) bool: several pairs dominate together, so that not even the direction of the state is rank one."""
        return self.rank_gap <= self.tie

    @property
    def shares(self) -> dict[str, float]:
        """The share of blocks that smooth, that sharpen, and that do neither."""
        return _shares(self.verdicts)

    @property
    def head_shares(self) -> dict[str, float]:
        return _shares([word for row in self.head_verdicts for word in row])

    @property
    def shares_of_weights(self) -> dict[str, float]:
        """The same for tokens of size 1, as the paper has it."""
        return _shares([_word(m, self.tie) for m in self.margin_of_weights.tolist()])

    def gist(self) -> str:
        shares = ", ".join(f"{share:.0%} {word}" for word, share in self.shares.items() if share)
        return f"{self.model}, {self.depth} blocks: {shares}"

    def derived(self) -> dict[str, Any]:
        names = ("margin", "verdicts", "shares", "head_shares", "shares_of_weights")
        return {name: getattr(self, name) for name in names}


def _word(margin: float, tie: float) -> str:
    return VERDICTS[1 + (margin > tie) - (margin < -tie)]


def _shares(words: list[str]) -> dict[str, float]:
    return {word: words.count(word) / max(1, len(words)) for word in reversed(VERDICTS)}
