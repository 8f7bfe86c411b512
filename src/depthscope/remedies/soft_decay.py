"""SoftDecay: flatten the singular values of the tokens (Yan et al. 2022)."""

import math

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.interventions.means import Stretch
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class SoftDecay(Remedy):
    """Y = U diag(f(sigma)) V^T,  f(x) ~ -log(1 - alpha (x + alpha)) / alpha.    Yan et al. 2022, SoftDecay.

    X = U diag(sigma) V^T (..., n, d) -> Y (..., n, d), alpha in (-1, 0]; the nearer to -1, the flatter. f is scaled so
    that the largest singular value stays; alpha = 0 is its limit, the identity. Singular values at the numerical floor
    stay zero, because their directions are arbitrary. The formula wants the largest above |alpha|, as tokens have it; a
    singular value below |alpha| changes its sign.
    learnable: alpha = -sigmoid(raw_alpha). There is no causal form.
    The official code acts in the last block alone, before its last norm: at="ffn_sum" and blocks= with that block.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.SoftDecay()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "block_out"
    source = "Yan et al. 2022 (2208.11790), SoftDecay; code hanqi-qi/tokenUni"
    off = {"alpha": 0.0}
    learns = ("alpha",)
    whole = True

    def __init__(self, alpha: float = -0.2, *, learnable: bool = False) -> None:
        super().__init__()
        if not isinstance(alpha, int | float) or not -1.0 < alpha <= 0.0:
            raise UsageError(
                f"SoftDecay: alpha must lie in (-1, 0]; got {alpha!r}. 0 does nothing, the paper's is -0.2."
            )
        self._alpha, self.learnable = float(alpha), learnable
        if learnable:
            if alpha == 0.0:
                raise UsageError(
                    "SoftDecay: a learnable alpha must start in (-1, 0); got 0, where it could not move. Start at -0.2."
                )
            self._start["alpha"] = self._alpha
            self.raw_alpha = nn.Parameter(torch.tensor(math.log(-alpha) - math.log1p(alpha)))

    @property
    def alpha(self) -> float | Tensor:
        """The strength now: a float, or a tensor that carries a gradient when it is learned."""
        return -self.raw_alpha.sigmoid() if self.learnable else self._alpha

    @property
    def causal_safe(self) -> bool:
        return self.is_off

    def why_not_causal(self) -> str:
        return "the singular vectors are those of the whole sequence"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        mask = stretch.mask
        if mask is None:
            return self._decay(X)
        n, d = X.shape[-2:]
        Y = []
        for x, real in zip(X.reshape(-1, n, d), mask.reshape(-1, n), strict=True):
            # only the real rows: zero rows would be repeated singular values, whose gradient is 0 / 0
            Y.append(x.index_put((real,), self._decay(x[real])) if bool(real.any()) else x)
        return torch.stack(Y).reshape(X.shape)

    def _decay(self, X: Tensor) -> Tensor:
        U, sigma, Vh = torch.linalg.svd(X, full_matrices=False)
        alpha, largest = self.alpha, sigma[..., :1]
        decayed = -torch.log1p(-alpha * (sigma + alpha)) / alpha
        floor = max(X.shape[-2:]) * torch.finfo(X.dtype).eps * largest
        decayed = torch.where(sigma > floor, decayed * (largest / decayed[..., :1]), 0.0)
        return (U * decayed.unsqueeze(-2)) @ Vh
