"""One pass over a state gives the energy of its common and of its centred part.

|X|_F^2 = |Pi_1 X|_F^2 + |Pi_2 X|_F^2,    Pi_1 = 1 1^T / n,    Pi_2 = I - Pi_1

Everything Yu & Zhang (2023) say of token similarity is a formula on these two numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from depthscope.metrics._chunks import centre, count_tokens, float64_chunks


class Energies(NamedTuple):
    """|Pi_1 X|_F^2 and |Pi_2 X|_F^2 of a state, each (...), float64."""

    common: Tensor
    centred: Tensor

    @property
    def total(self) -> Tensor:
        return self.common + self.centred


def energies(X: Tensor, mask: Tensor | None = None, *, where: str = "energies") -> Energies:
    """The two energies of X (..., n, d), over the tokens where mask (..., n) is True."""
    common, centred = [], []
    for x, valid in float64_chunks(X, mask, where=where):
        Pi_2_x, mean = centre(x, valid)
        common.append(count_tokens(x, valid) * mean.square().sum((-2, -1)))
        centred.append(torch.linalg.vector_norm(Pi_2_x, dim=(-2, -1)).square())
    shape = X.shape[:-2]
    return Energies(torch.cat(common).reshape(shape), torch.cat(centred).reshape(shape))
