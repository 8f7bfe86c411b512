"""How alike the n tokens of one state X are (Yu & Zhang 2023, section 1.1)."""

from torch import Tensor, where

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric

_INVARIANT = ("token order", "scale", "rotation", "padding")


def _similarity(chunk: Chunk) -> Tensor:
    return chunk.scaled_energies.common / chunk.scaled_energies.total


def _diversity(chunk: Chunk) -> Tensor:
    return chunk.scaled_energies.centred / chunk.scaled_energies.total


def _cosine(chunk: Chunk) -> Tensor:
    weight = where(chunk.norms > 0, 1.0 / chunk.norms, chunk.norms)  # keeps a NaN, leaves a zero token at zero
    unit_sum = chunk.weighted(weight)  # (b, d)
    return (unit_sum.square().sum(-1) - (chunk.norms > 0).sum(-1)) / (chunk.n * (chunk.n - 1))


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_similarity)
def t_sim(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token similarity: the share of X that all tokens have in common.

    t_sim(X) = |Pi_1 X|_F^2 / |X|_F^2,    Pi_1 = 1 1^T / n

    X (..., n, d) -> (...), in [0, 1]; 1 when all tokens are equal, NaN when X is all zero. Off by less than 1e-7 of
    itself for float32 tokens (1e-8 as a rule), 1e-12 for float64 ones.
    Yu & Zhang 2023, Definition 1.1.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_sim(X)), 3)
        0.75
    """
    return by_sample(_similarity, X, mask, where="t_sim")


@metric("state", takes=("X",), bounds=(0, 1), invariant=_INVARIANT, formula=_diversity)
def t_div(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Token diversity: the share of X that differs from token to token.

    t_div(X) = |Pi_2 X|_F^2 / |X|_F^2,    Pi_2 = I - 1 1^T / n

    X (..., n, d) -> (...), in [0, 1]; 0 when all tokens are equal. Computed from centred tokens:
    1 - t_sim would lose all digits below 1e-16. Off by less than 1e-7 of itself for float32 tokens (1e-8 as a rule),
    1e-12 for float64 ones, however alike the tokens are. Yu & Zhang 2023, Definition 1.1.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_div(X)), 3)
        0.25
    """
    return by_sample(_diversity, X, mask, where="t_div")


@metric("state", takes=("X",), bounds=(-1, 1), invariant=(*_INVARIANT, "scale of each token"), formula=_cosine)
def t_cos(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean cosine similarity over all pairs of tokens, in O(n d).

    t_cos(X) = (|sum_i u_i|^2 - sum_i |u_i|^2) / (n^2 - n),    u_i = x_i / |x_i|

    X (..., n, d) -> (...), in [-1/(n-1), 1]; a zero token counts as orthogonal to all others. Of float32
    tokens off by less than 1e-7.
    Yu & Zhang 2023, eq. (1).

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.t_cos(X)), 3)
        0.701
    """
    return by_sample(_cosine, X, mask, where="t_cos")
