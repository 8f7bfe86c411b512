"""Chains of random blocks in the sizes of Yu & Zhang 2023, section 2.4, and the rows of numbers they give."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from depthscope.metrics import t_div, t_sim
from depthscope.models.design import Design


@dataclass(frozen=True)
class ChainSizes:
    """n tokens of width d, h heads; the feed-forward width q is not given there, 2 d is Table 1's ratio."""

    trials: int = 20
    n: int = 64
    d: int = 512
    h: int = 8
    q: int = 1024
    seed: int = 0

    def design(self, depth: int, **choices: Any) -> Design:
        return Design(depth=depth, d=self.d, h=self.h, q=self.q, **choices)

    def tokens(self) -> Tensor:
        """X (trials, n, d), independent."""
        return torch.randn(self.trials, self.n, self.d)


def log_odds(X: Tensor) -> Tensor:
    """log(t_sim / t_div), without the rounding of 1 - t_sim."""
    return t_sim(X).log() - t_div(X).log()


def stacked(rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The numbers of all rows by name, along a new first axis."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
