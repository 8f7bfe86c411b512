"""Token metrics as torchmetrics: they add up over batches and processes, and drop into pipelines that exist.

metric.update(X, mask=None) takes states X (..., n, d) and which tokens count (..., n); compute() is the mean over all
sequences, whatever the sizes of the batches. Sums are kept in float64. A NaN stays a NaN.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from depthscope.errors import MissingExtraError
from depthscope.extras import install
from depthscope.metrics.similarity import t_cos, t_div, t_sim
from depthscope.metrics.sizes import relative_residual

try:
    from torchmetrics import Metric
except ImportError:
    raise MissingExtraError(f"integrations: needs torchmetrics. {install('integrations')}") from None


class _MeanOverSequences(Metric):
    """The mean of a metric of depthscope over sequences."""

    formula: ClassVar[Callable[..., Tensor]]  # X (..., n, d) -> (...)
    is_differentiable = False  # depthscope.metrics measure, and keep no graph
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound: float | None = 1.0

    total: Tensor  # of the metric over sequences
    count: Tensor  # of sequences

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, X: Tensor, mask: Tensor | None = None) -> None:
        """Add the sequences of a batch, X (..., n, d); mask (..., n) is true where a token is no padding."""
        values = type(self).formula(X, mask=mask)
        self.total = self.total + values.sum()
        self.count = self.count + values.numel()

    def compute(self) -> Tensor:
        """The mean over all sequences so far, in all processes."""
        return self.total / self.count

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """A figure and its axes, of one value or of a list of values, as all torchmetrics give them."""
        return self._plot(val, ax)


class TokenSimilarity(_MeanOverSequences):
    """t_sim: the share of the signal that all tokens have in common; 1 when they are all alike.

    Examples:
        >>> metric = ds.integrations.TokenSimilarity()
        >>> metric.update(torch.ones(2, 4, 8))  # (..., n, d): tokens that are all alike
        >>> metric.compute().item()
        1.0
    """

    formula = staticmethod(t_sim)
    higher_is_better = False


class TokenDiversity(_MeanOverSequences):
    """t_div: the share of the signal that differs from token to token; 0 when they are all alike.

    Examples:
        >>> metric = ds.integrations.TokenDiversity()
        >>> metric.update(torch.eye(4))  # (..., n, d): 4 tokens that are orthogonal
        >>> round(metric.compute().item(), 3)
        0.75
    """

    formula = staticmethod(t_div)
    higher_is_better = True


class TokenCosine(_MeanOverSequences):
    """t_cos: the mean cosine similarity over all pairs of tokens.

    Examples:
        >>> metric = ds.integrations.TokenCosine()
        >>> metric.update(torch.eye(4))  # (..., n, d): 4 tokens that are orthogonal
        >>> round(metric.compute().item(), 3)
        0.0
    """

    formula = staticmethod(t_cos)
    higher_is_better = False
    plot_lower_bound = -1.0


class RelativeResidual(_MeanOverSequences):
    """relative_residual: what is left without the mean token, in the norm of Dong et al.; 0 when all are alike.

    Examples:
        >>> metric = ds.integrations.RelativeResidual()
        >>> metric.update(torch.ones(2, 4, 8))  # (..., n, d): tokens that are all alike
        >>> round(metric.compute().item(), 3)
        0.0
    """

    formula = staticmethod(relative_residual)
    higher_is_better = True
    plot_upper_bound = None
