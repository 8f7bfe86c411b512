"""Laplacian heads: some heads take differences instead of means (Zhang & Papyan 2026)."""

import torch
from torch import Tensor

from depthscope.registry import shelve
from depthscope.remedies.attention_remedy import AttentionRemedy, identity


@shelve("remedy")
class LaplacianHeads(AttentionRemedy):
    """P'_k = I - P_k for the first round(share h) heads, at least one; else P_k.    Zhang & Papyan 2026 (2602.09297)

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.LaplacianHeads()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    source = "Zhang & Papyan 2026 (2602.09297); share 0.5 ours"
    off = {"share": 0.0}

    def __init__(self, share: float = 0.5) -> None:
        super().__init__()
        self.share = self._within("share", share, 0.0, 1.0, "The share of heads that take differences.")

    def pattern(self, P: Tensor, U: Tensor) -> Tensor:
        heads = self.heads_of(P)
        differ = torch.arange(heads, device=P.device) < max(1, round(self.share * heads))
        return torch.where(differ.view(-1, 1, 1), identity(P) - P, P)
