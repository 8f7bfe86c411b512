"""With which factors the skip connection and the branch of attention are summed: 1 and alpha, or DeepNorm's own."""

from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.circuits.subject import Subject
from depthscope.circuits.wide import wide
from depthscope.errors import HookError, UsageError
from depthscope.traces.events import Passage, StreamListener


class JoinFactors(NamedTuple):
    """X <- skip X + branch SA(X)."""

    skip: float
    branch: float


def read_factors(subject: Subject) -> list[JoinFactors]:
    """The factors of every block in one pass, by least squares on what went into the sum and what came out."""
    listener = _Factors(subject.name)
    subject.listen(listener)
    for number, off in enumerate(listener.off, 1):
        if not off < 1e-2:
            raise HookError(
                f"attention must be added to the residual stream itself, times numbers; in block {number} of "
                f"{subject.name} the sum differs by {off:.1e}. Something else acts on the stream there: use "
                "form='secant', which follows it."
            )
    return listener.factors


def check_finite(tokens: Tensor, where: str) -> None:
    if not bool(tokens.isfinite().all()):
        raise UsageError(
            f"what runs through the blocks must be finite; {where} gives NaN or infinity. "
            "depthscope scan says where it begins."
        )


class _Factors(StreamListener):
    def __init__(self, model: str) -> None:
        self.model = model
        self.factors: list[JoinFactors] = []
        self.off: list[float] = []  # what least squares leave of the sum
        self._terms: Tensor | None = None

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        if name == "sa_out":
            both = (now.stream, tokens)
            self._terms = torch.stack([wide(x).flatten() for x in both], 1)  # (entries, 2)
        elif name == "sa_sum" and self._terms is not None:
            total = wide(tokens).flatten().unsqueeze(1)
            check_finite(total, f"block {len(self.factors) + 1} of {self.model}")
            factors = torch.linalg.lstsq(self._terms, total).solution
            self.factors.append(JoinFactors(*factors.flatten().tolist()))
            self.off.append(float((self._terms @ factors - total).norm() / total.norm()))
            self._terms = None
        return tokens
