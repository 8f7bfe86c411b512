"""Paths of one length drawn at random, with standard errors (Dong et al. 2021, section 4)."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.errors import UsageError
from depthscope.theory.path_counts import path_counts
from depthscope.theory.paths import Blocks, Path, along_path, check_blocks


class Sampled(NamedTuple):
    """The mean contribution of a path of one length, its standard error, and log10 of how many there are.

    Examples:
        >>> P, W = torch.full((1, 4, 4), 0.25), torch.eye(3)[None]
        >>> found = ds.theory.sampled_paths(torch.ones(4, 3), [P] * 2, [W] * 2, [W] * 2, length=1, paths=10)
        >>> round(10 ** found.log10_count)
        2
    """

    mean: Tensor
    standard_error: Tensor
    log10_count: float

    @property
    def total(self) -> Tensor:
        """Estimate of the sum over all paths of this length; its standard error grows by the same factor."""
        return self.mean * 10**self.log10_count


def sampled_paths(
    X: Tensor,
    P: Blocks,
    W_V: Blocks,
    W_O: Blocks,
    *,
    length: int,
    paths: int = 100,
    generator: torch.Generator | None = None,
) -> Sampled:
    """The mean over paths of one length, drawn uniformly with replacement, as the paper does.

    mean = 1/m sum_i along_path(path_i, X),    standard error = s / sqrt(m), entry by entry

    X (..., n, d) -> (..., n, d) each. by_length gives the same sum without error; this shows single paths.

    Examples:
        >>> P, W = torch.full((1, 4, 4), 0.25), torch.eye(3)[None]
        >>> found = ds.theory.sampled_paths(torch.ones(4, 3), [P] * 2, [W] * 2, [W] * 2, length=1, paths=10)
        >>> found.mean.shape, found.standard_error.max().item()  # all paths of length 1 are alike here
        (torch.Size([4, 3]), 0.0)
    """
    if paths < 2:
        raise UsageError(f"sampled_paths: a standard error needs two paths or more; got paths={paths}.")
    heads = check_blocks(P, W_V, W_O, where="sampled_paths")
    mean, squares = torch.zeros_like(X), torch.zeros_like(X)
    for i, path in enumerate(draw_paths(heads, length, paths, generator), 1):
        term = along_path(path, X, P, W_V, W_O)
        off = term - mean
        mean = mean + off / i
        squares = squares + off * (term - mean)
    error = (squares / (paths - 1) / paths).sqrt()
    return Sampled(mean, error, float(path_counts(heads=heads).log10_counts[length]))


def draw_paths(
    heads: Sequence[int], length: int, paths: int, generator: torch.Generator | None = None
) -> Iterator[Path]:
    """Paths of one length, all equally likely, drawn with replacement.

    From the last block back: a block with H heads is attended to with probability H count(k-1) / count(k), where k
    heads are still to come and count counts the paths through the blocks before it, this one included in count(k).

    Examples:
        >>> paths = ds.theory.draw_paths([2, 2, 2], length=1, paths=5, generator=torch.manual_seed(0))
        >>> [sum(head is not None for head in path) for path in paths]
        [1, 1, 1, 1, 1]
    """
    if not 0 <= length <= len(heads):
        raise UsageError(
            f"draw_paths: the length must lie between 0 and the {len(heads)} blocks; got {length}. A path has at most "
            "one head of every block."
        )
    before = [path_counts(heads=heads[:i]).log10_counts if i else torch.zeros(1) for i in range(len(heads))]
    for _ in range(paths):
        path: list[int | None] = []
        left = length
        for counts, H in zip(reversed(before), reversed(heads), strict=True):
            takes, skips = _log10_at(counts, left - 1) + math.log10(H), _log10_at(counts, left)
            chance = 1 / (1 + 10 ** min(skips - takes, 300.0)) if takes > -math.inf else 0.0
            if float(torch.rand((), generator=generator)) < chance:
                path.append(int(torch.randint(H, (), generator=generator)))
                left -= 1
            else:
                path.append(None)
        yield tuple(reversed(path))


def _log10_at(log10_counts: Tensor, length: int) -> float:
    return float(log10_counts[length]) if 0 <= length < len(log10_counts) else -math.inf
