"""Gain control: take the mean token out and normalise what is left (Giorlandino & Goldt 2025)."""

from torch import Tensor
from torch.nn import functional as F

from depthscope._registry import shelve
from depthscope.remedies._mean import MEANS, token_mean
from depthscope.remedies._remedy import Remedy


@shelve("remedy")
class GainControl(Remedy):
    """Y = LN(X - mean token).    Giorlandino & Goldt 2025, gain-controlled attention.

    X (..., n, d) -> Y (..., n, d). LN has no weights. mean: "full" as published; "prefix", "sink" and "past" use
    earlier tokens only. strength (ours) mixes, (1 - strength) X + strength Y; 1 is the paper, 0 is off.
    The paper acts on the output of attention before the residual is added; at sa_sum the residual is included.
    """

    at = "sa_sum"
    source = "Giorlandino & Goldt 2025 (2505.24333), gain-controlled attention"
    off = {"strength": 0.0}
    choices = {"mean": MEANS}
    causal = {"mean": "sink"}

    def __init__(self, strength: float = 1.0, *, mean: str = "full", eps: float = 1e-5) -> None:
        super().__init__()
        self.strength = self._within("strength", strength, 0.0, 1.0, "1 is gain control, 0 does nothing.")
        self.mean, self.eps = self._choose("mean", mean), eps

    @property
    def causal_safe(self) -> bool:
        return self.is_off or self.mean != "full"

    def act(self, X: Tensor, mask: Tensor | None) -> Tensor:
        Y = F.layer_norm(X - token_mean(X, self.mean, mask), X.shape[-1:], eps=self.eps)
        return X.lerp(Y, self.strength)
