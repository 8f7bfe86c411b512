"""Gain control: attention without its mean token, the residual with it (Giorlandino & Goldt 2025)."""

from depthscope.registry import shelve
from depthscope.remedies.de_escalate import DeEscalate


@shelve("remedy")
class GainControl(DeEscalate):
    """Y = (I - tau Pi_1) SA(X), before the residual is added.    Giorlandino & Goldt 2025, gain-controlled attention.

    De-escalation of what attention adds, and of nothing else: the mean token that was there stays, and does not grow.
    X (..., n, d) is the output of attention -> Y (..., n, d). tau = 1 is the paper; the norm that it speaks of is the
    block's own. Forms and learnable as in DeEscalate.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.GainControl()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "sa_out"
    source = "Giorlandino & Goldt 2025 (2505.24333), gain-controlled attention; causal forms ours"
