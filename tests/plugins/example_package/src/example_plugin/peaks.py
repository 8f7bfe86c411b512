"""How large the largest token is, relative to the mean token."""

import math

from torch import Tensor

from depthscope.metrics.chunks import Chunk, by_sample
from depthscope.registry import metric


def _peak(chunk: Chunk) -> Tensor:
    return chunk.norms.amax(-1) / (chunk.norms.sum(-1) / chunk.n)


@metric("state", takes=("X",), bounds=(1, math.inf), formula=_peak, default=False)
def peak_norm(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The largest token over the mean token."""
    return by_sample(_peak, X, mask, where="peak_norm")
