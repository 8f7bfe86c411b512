"""De-escalation: subtract part of the mean token (Yu & Zhang 2023, section 3.2)."""

from torch import Tensor, nn

from depthscope._registry import shelve
from depthscope.errors import UsageError


@shelve("remedy")
class DeEscalate(nn.Module):
    """Y = (I - tau Pi_1) X,  tau in [0, 1].    Yu & Zhang 2023, eq. (21).

    X (..., n, d) -> Y (..., n, d). tau = 1 centres the tokens; tau = 0 is the identity. The mean is over all tokens,
    so in a causal model it would show every token its future: fix_ refuses that.
    """

    at = "block_out"
    causal_safe = False

    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()
        if not 0.0 <= tau <= 1.0:
            raise UsageError(
                f"DeEscalate: tau must lie in [0, 1]; got {tau}. 1 removes the mean token, 0 does nothing."
            )
        self.tau = tau

    def forward(self, X: Tensor) -> Tensor:
        return X - self.tau * X.mean(-2, keepdim=True)

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}"
