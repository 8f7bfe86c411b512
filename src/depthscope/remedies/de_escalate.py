"""De-escalation: subtract part of the mean token (Yu & Zhang 2023, section 3.2)."""

import math

import torch
from torch import Tensor, nn

from depthscope.errors import UsageError
from depthscope.interventions.means import MEANS, Stretch, token_mean
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class DeEscalate(Remedy):
    """Y = (I - tau Pi_1) X,  tau in [0, 1].    Yu & Zhang 2023, eq. (21).

    X (..., n, d) -> Y (..., n, d). tau = 1 centres the tokens; tau = 0 is the identity. form "full" takes the mean over
    all tokens, so in a causal model it would show every token its future. The causal forms: "sink"
    (sum_{s <= t} x_s / (t + 1), the one to take), "prefix" (mean of s <= t; tau = 1 makes the first token zero),
    "past" (mean of s < t; the first token is left alone).
    learnable: tau = sigmoid(raw_tau), so it stays between 0 and 1. It starts at the given tau; sigmoid never reaches
    1, so tau = 1 starts at 0.99, where it can still move. Keep raw_tau out of weight decay, which pulls tau to 1/2.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.DeEscalate()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "block_out"
    source = "Yu & Zhang 2023 (2312.06182), eq. (21); causal forms ours, prefix after He & Hofmann 2023 (2311.01906)"
    off = {"tau": 0.0}
    choices = {"form": MEANS}
    learns = ("tau",)
    causal = {"form": "sink"}

    def __init__(self, tau: float = 1.0, *, form: str = "full", learnable: bool = False) -> None:
        super().__init__()
        self._tau = self._within("tau", tau, 0.0, 1.0, "1 removes the mean token, 0 does nothing.")
        self.form, self.learnable = self._choose("form", form), learnable
        if learnable:
            if tau == 0.0:
                raise UsageError(
                    "DeEscalate: a learnable tau must start in (0, 1]; got 0, where it could not move. Start at 0.5."
                )
            self._start["tau"] = self._tau
            start = 0.99 if tau == 1.0 else self._tau
            self.raw_tau = nn.Parameter(torch.tensor(math.log(start) - math.log1p(-start)))

    @property
    def tau(self) -> float | Tensor:
        """The strength now: a float, or a tensor that carries a gradient when it is learned."""
        return self.raw_tau.sigmoid() if self.learnable else self._tau

    @property
    def causal_safe(self) -> bool:
        return self.is_off or self.form != "full"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        return X - self.tau * token_mean(X, self.form, stretch)
