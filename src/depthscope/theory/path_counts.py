"""How many paths of each length a network of attention blocks has (Dong et al. 2021, sections 2 and 3).

A path takes one head of a block, or its skip connection; its length is the number of heads on it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from depthscope.errors import UsageError

MODELS = {  # blocks and heads, as the paper's figure on path lengths lists them
    "DeiT-T": (12, 3),
    "MobileBERT": (12, 4),
    "DistilBERT": (6, 12),
    "BERT-base, ViT-B": (12, 12),
    "BERT-large, ViT-L": (24, 16),
    "ViT-H": (32, 16),
    "T5-3B": (24, 32),
    "T5-11B": (24, 128),
    "GPT-3": (96, 96),
}


@dataclass(frozen=True, eq=False)
class PathCounts:
    """log10_counts: log10 of the number of paths of length 0 .. depth, (depth + 1,); -inf where there are none.

    Examples:
        >>> counts = ds.theory.path_counts(depth=4, heads=2)
        >>> [round(10 ** float(count)) for count in counts.log10_counts]  # of length 0, 1, 2, 3, 4
        [1, 8, 24, 32, 16]
    """

    heads: tuple[int, ...]
    log10_counts: Tensor

    @property
    def depth(self) -> int:
        return len(self.heads)

    @property
    def log10_total(self) -> float:
        """log10 of the number of all paths, (1 + H)^L, or H^L without skips."""
        return float(torch.logsumexp(self.log10_counts * math.log(10), 0)) / math.log(10)

    @property
    def log10_shares(self) -> Tensor:
        """log10 of shares, which may be too small for a number, (depth + 1,)."""
        return self.log10_counts - self.log10_total

    @property
    def shares(self) -> Tensor:
        """Which part of all paths has length 0 .. depth, (depth + 1,); sums to 1."""
        return torch.softmax(self.log10_counts * math.log(10), 0)

    @property
    def mean_length(self) -> float:
        """The length of a path drawn at random, on average: L H / (1 + H)."""
        return float(self.shares @ torch.arange(self.depth + 1, dtype=torch.float64))


def path_counts(depth: int | None = None, heads: int | Sequence[int] = 12, *, skips: bool = True) -> PathCounts:
    """The number of paths of every length, in log space: GPT-3 has 10^191 of them.

    count(l) = C(L, l) H^l,    with skips;    H^L for l = L and none shorter, without

    depth blocks (12 when left out) of `heads` heads each, or one number of heads for each block. Counted block by
    block, count(l) <- count(l) + H count(l - 1), which allows blocks to differ. Dong et al. 2021, section 3.

    Examples:
        >>> ds.theory.path_counts(depth=2, heads=3).log10_counts.shape
        torch.Size([3])
    """
    each = _heads_of(depth, heads)
    log_counts = torch.full((len(each) + 1,), -torch.inf, dtype=torch.float64)
    log_counts[0] = 0.0
    for H in each:
        longer = torch.cat([torch.tensor([-torch.inf], dtype=torch.float64), log_counts[:-1] + math.log(H)])
        log_counts = torch.logaddexp(log_counts, longer) if skips else longer
    return PathCounts(each, log_counts / math.log(10))


def _heads_of(depth: int | None, heads: int | Sequence[int]) -> tuple[int, ...]:
    each = (heads,) * (12 if depth is None else depth) if isinstance(heads, int) else tuple(heads)
    if depth is not None and len(each) != depth:
        raise UsageError(
            f"path_counts: heads must be one number, or one for each block; got {len(each)} for a depth of {depth}. "
            "Leave depth out."
        )
    if not each or min(each) < 1:
        raise UsageError(
            f"path_counts: there must be blocks, with one head or more; got depth {len(each)} and heads {heads}. "
            "Count attention blocks, and heads of queries."
        )
    return each
