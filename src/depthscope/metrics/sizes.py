"""How large a state is, and how large the part of it that is not common (Dong et al. 2021)."""

import math

from torch import Tensor

from depthscope.metrics.chunk import Chunk
from depthscope.metrics.chunks import by_sample
from depthscope.registry import metric


def _composite(chunk: Chunk) -> Tensor:
    return chunk.full_size(chunk.composite)


def _relative(chunk: Chunk) -> Tensor:
    return chunk.centred_composite / chunk.composite


def _mean_norm(chunk: Chunk) -> Tensor:
    return chunk.full_size(chunk.norms.sum(-1) / chunk.n)


def _frequencies(chunk: Chunk) -> Tensor:
    return (chunk.scaled_energies.centred / chunk.scaled_energies.common).sqrt()


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "padding"), formula=_composite)
def composite_norm(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The size of X in the measure that Dong et al. use for their bounds.

    |X|_{1,inf} = sqrt(|X|_1 |X|_inf),    |X|_1 = max column abs sum,  |X|_inf = max row abs sum

    X (..., n, d) -> (...), >= 0. Not a norm: the triangle inequality fails. Of float32 tokens off by at most about 3e-7
    of itself. Dong et al. 2021, section 2.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.composite_norm(X)), 3)
        3.0
    """
    return by_sample(_composite, X, mask, where="composite_norm")


@metric(
    "state",
    takes=("X",),
    bounds=(0, math.inf),
    invariant=("token order", "scale", "padding"),
    formula=_relative,
)
def relative_residual(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """What is left of X without its mean token, relative to X: 0 when all tokens are equal.

    |res(X)|_{1,inf} / |X|_{1,inf},    res(X) = X - 1 x^T,  x the mean token

    X (..., n, d) -> (...), >= 0. Of float32 tokens off by at most about 3e-7 of itself. Dong et al. 2021, the curves of
    residual by depth.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.relative_residual(X)), 3)
        0.471
    """
    return by_sample(_relative, X, mask, where="relative_residual")


@metric(
    "state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "rotation", "padding"), formula=_mean_norm
)
def token_norm(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean Euclidean norm of a token.

    token_norm(X) = (1/n) sum_i |x_i|

    X (..., n, d) -> (...), >= 0; grows with depth in pre-norm models. Yu & Zhang 2023, eq. (20), figure 4.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.token_norm(X)), 3)
        1.55
    """
    return by_sample(_mean_norm, X, mask, where="token_norm")


@metric(
    "state",
    takes=("X",),
    bounds=(0, math.inf),
    invariant=("token order", "scale", "rotation", "padding"),
    formula=_frequencies,
)
def hfc_lfc(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """High over low token frequencies: what differs between tokens over what they share.

    hfc_lfc(X) = |Pi_2 X|_F / |Pi_1 X|_F = sqrt(t_div / t_sim)

    X (..., n, d) -> (...), >= 0; a model that drives it to 0 is a low-pass filter (it over-smooths).
    Wang et al. 2022; Dovonon et al. 2024, section 2.

    Examples:
        >>> X = torch.tensor([[1.0, 0.0], [1.0, 2.0], [1.0, 1.0]])  # (n, d) = (3, 2)
        >>> round(float(ds.metrics.hfc_lfc(X)), 3)
        0.577
    """
    return by_sample(_frequencies, X, mask, where="hfc_lfc")
