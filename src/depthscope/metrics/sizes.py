"""How large a state is, and how large the part of it that is not common (Dong et al. 2021)."""

import math

import torch
from torch import Tensor

from depthscope._registry import metric
from depthscope.metrics._chunks import by_sample, centre, count_tokens
from depthscope.metrics._energies import Energies, energies


def _composite(x: Tensor) -> Tensor:
    x = x.abs()
    return (x.sum(-2).amax(-1) * x.sum(-1).amax(-1)).sqrt()


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "padding"))
def composite_norm(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The size of X in the measure that Dong et al. use for their bounds.

    |X|_{1,inf} = sqrt(|X|_1 |X|_inf),    |X|_1 = max column abs sum,  |X|_inf = max row abs sum

    X (..., n, d) -> (...), >= 0. Not a norm: the triangle inequality fails. Dong et al. 2021, section 2.
    """
    return by_sample(lambda x, _: _composite(x), X, mask, where="composite_norm")


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "scale", "padding"))
def relative_residual(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """What is left of X without its mean token, relative to X: 0 when all tokens are equal.

    |res(X)|_{1,inf} / |X|_{1,inf},    res(X) = X - 1 x^T,  x the mean token

    X (..., n, d) -> (...), >= 0. Dong et al. 2021, the curves of residual by depth.
    """
    return by_sample(
        lambda x, valid: _composite(centre(x, valid)[0]) / _composite(x),
        X,
        mask,
        where="relative_residual",
    )


@metric("state", takes=("X",), bounds=(0, math.inf), invariant=("token order", "rotation", "padding"))
def token_norm(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """Mean Euclidean norm of a token.

    token_norm(X) = (1/n) sum_i |x_i|

    X (..., n, d) -> (...), >= 0; grows with depth in pre-norm models. Yu & Zhang 2023, eq. (20), figure 4.
    """
    return by_sample(
        lambda x, valid: torch.linalg.vector_norm(x, dim=-1).sum(-1) / count_tokens(x, valid),
        X,
        mask,
        where="token_norm",
    )


def _ratio(E: Energies) -> Tensor:
    return (E.centred / E.common).sqrt()


@metric(
    "state",
    takes=("X",),
    bounds=(0, math.inf),
    invariant=("token order", "scale", "rotation", "padding"),
    formula=_ratio,
)
def hfc_lfc(X: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """High over low token frequencies: what differs between tokens over what they share.

    hfc_lfc(X) = |Pi_2 X|_F / |Pi_1 X|_F = sqrt(t_div / t_sim)

    X (..., n, d) -> (...), >= 0; a model that drives it to 0 is a low-pass filter (it over-smooths).
    Wang et al. 2022; Dovonon et al. 2024, section 2.
    """
    return _ratio(energies(X, mask, where="hfc_lfc"))
