"""sigmaReparam: every weight matrix with a spectral norm of its own choosing (Zhai et al. 2023)."""

from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.interventions.graphs import is_exporting
from depthscope.registry import shelve
from depthscope.remedies.weight_remedy import WeightRemedy
from depthscope.traces.identity import version


@shelve("remedy")
class SigmaReparam(WeightRemedy):
    """W' = (g / sigma(W))^power W,  sigma(W) = |W|_2.    Zhai et al. 2023 (2303.06296)

    W (any, any) -> W' of the same shape. g is learned, one for each matrix, and starts at sigma(W), so that at first
    W' = W, as in the official code for vision; that for speech starts at 1: gain=1. learnable=False keeps the gain.
    sigma comes from an SVD at first, from one step of power iteration in each training pass after, and from an SVD in
    evaluation whenever W has changed; its gradient is u v^T. power 1 is the paper, 0 is off. Packed matrices (q, k, v
    in one) are taken as one, as in the official code, which also takes those outside the blocks and drops the norms.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.SigmaReparam()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Zhai et al. 2023 (2303.06296); code apple/ml-sigma-reparam"
    off = {"power": 0.0}
    learns = ("gain",)

    def __init__(self, gain: float | None = None, *, power: float = 1.0, learnable: bool = True) -> None:
        super().__init__()
        self.gain = None if gain is None else self._within("gain", gain, 0.0, 1e6, "The spectral norm to have.")
        self.power = self._within("power", power, 0.0, 1.0, "1 is sigmaReparam, 0 does nothing.")
        self.learnable = learnable
        if gain is None and not learnable and power:
            raise UsageError(
                "SigmaReparam: a gain that is not learned must be a number; got None. Give gain=1.0, or learnable=True."
            )
        if learnable:
            self.g = nn.Parameter(torch.tensor(1.0 if gain is None else self.gain))
        self._u: Any
        self._v: Any
        self.register_buffer("_u", None, persistent=False)  # found again by an SVD after loading
        self.register_buffer("_v", None, persistent=False)
        self._exact_for: tuple[int, int] | None = None  # the W that u and v were found for by an SVD

    @property
    def is_off(self) -> bool:
        return self.power == 0.0

    def start_(self, W: Tensor) -> None:
        if self.learnable and self.gain is None:
            with torch.no_grad():
                self.g.copy_(torch.linalg.matrix_norm(_wide(W), 2))

    def weight(self, W: Tensor) -> Tensor:
        g: Any = self.g if self.learnable else self.gain
        return W * ((g / self._sigma(W)) ** self.power).to(W.dtype)

    def _sigma(self, W: Tensor) -> Tensor:
        """u^T W v with u, v the leading singular vectors, taken as constants; an exported graph finds them itself."""
        if is_exporting():
            return torch.linalg.matrix_norm(_wide(W), 2)
        with torch.inference_mode(False), torch.no_grad():  # u and v may be used with gradients later
            wide, now = _wide(W.detach()), (W.data_ptr(), version(W))
            if self._u is None or (not self.training and now != self._exact_for):
                U, _, Vh = torch.linalg.svd(wide, full_matrices=False)
                self._u, self._v, self._exact_for = U[:, 0].clone(), Vh[0].clone(), now
            elif self.training:
                self._u = nn.functional.normalize(wide @ self._v, dim=0)
                self._v = nn.functional.normalize(wide.T @ self._u, dim=0)
                self._exact_for = None
        return self._u @ _wide(W) @ self._v


def _wide(W: Tensor) -> Tensor:
    return W.float() if W.dtype in (torch.float16, torch.bfloat16) else W
