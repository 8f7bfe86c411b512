"""With which factors the skip connection and the branch of attention are summed: 1 and alpha, or DeepNorm's own."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from depthscope.errors import HookError, UsageError
from depthscope.traces.inputs import Batch
from depthscope.traces.look import Looked, Span, evaluated
from depthscope.traces.stream import Follow
from depthscope.traces.untouched import untouched


class Join(NamedTuple):
    """X <- skip X + branch SA(X)."""

    skip: float
    branch: float


def read_joins(model: nn.Module, batch: Batch, looked: Looked) -> list[Join]:
    """The factors of every block in one pass, by least squares on what went into the sum and what came out."""
    watch = _Joins(model, looked.spans)
    with untouched(model), evaluated(model), torch.no_grad(), watch:
        model(*batch.args, **batch.kwargs)
    for number, off in enumerate(watch.off, 1):
        if not off < 1e-2:
            raise HookError(
                f"paths: attention must be added to the residual stream itself, times numbers; in block {number} of "
                f"{type(model).__name__} the sum differs by {off:.1e}. Something else acts on the stream there: use "
                "form='secant', which follows it."
            )
    return watch.joins


def check_finite(tokens: Tensor, where: str) -> None:
    if not bool(tokens.isfinite().all()):
        raise UsageError(
            f"paths: what runs through the blocks must be finite; {where} gives NaN or infinity. "
            "depthscope scan says where it begins."
        )


class _Joins(Follow):
    def __init__(self, model: nn.Module, spans: list[Span]) -> None:
        super().__init__(model, spans, self._act)
        self.joins: list[Join] = []
        self.off: list[float] = []  # what least squares leave of the sum
        self._terms: Tensor | None = None

    def _act(self, block: str, site: str, tokens: Tensor) -> Tensor:
        if site == "sa_out" and self.open is not None:
            both = (self.open.stream, tokens)
            self._terms = torch.stack([x.detach().double().flatten() for x in both], 1)  # (entries, 2)
        elif site == "sa_sum" and self._terms is not None:
            total = tokens.detach().double().flatten().unsqueeze(1)
            check_finite(total, f"block {len(self.joins) + 1} of {type(self.model).__name__}")
            factors = torch.linalg.lstsq(self._terms, total).solution
            self.joins.append(Join(*factors.flatten().tolist()))
            self.off.append(float((self._terms @ factors - total).norm() / total.norm()))
            self._terms = None
        return tokens
