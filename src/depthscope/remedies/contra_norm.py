"""ContraNorm: push every token away from those it resembles (Guo et al. 2023)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from depthscope.errors import UsageError
from depthscope.interventions.means import Stretch
from depthscope.registry import shelve
from depthscope.remedies.remedy import Remedy


@shelve("remedy")
class ContraNorm(Remedy):
    """Y = LN(X - s A X),  A = softmax(x_i . x_j / (|x_i| |x_j| T)).    Guo et al. 2023, ContraNorm.

    X (..., n, d) -> Y (..., n, d). form "plain" is the above, "identity" is LN((1 + s) X - s A X), an option of the
    official code. over: "all" tokens as published, or "prefix", the softmax masked to s <= t. LN has no weights.
    scale = 0 is the identity, without LN; the official code still normalises there. It acts at sa_sum in post-norm
    models (BERT); in pre-norm ones it takes the place of the norms (ViT): use attn_in or ffn_in there, not sa_sum.

    Examples:
        >>> model = ds.models.classic(depth=2, d=8, h=2)
        >>> with ds.fix_(model, ds.remedies.ContraNorm()):
        ...     print(model(torch.randn(1, 4, 8)).shape)
        torch.Size([1, 4, 8])
    """

    at = "sa_sum"
    source = "Guo et al. 2023 (2303.06562), ContraNorm; code PKU-ML/ContraNorm; causal form ours"
    off = {"scale": 0.0}
    choices = {"form": ("plain", "identity"), "over": ("all", "prefix")}
    causal = {"over": "prefix"}
    whole = True

    def __init__(
        self,
        scale: float = 0.1,
        *,
        temperature: float = 1.0,
        form: str = "plain",
        over: str = "all",
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if temperature == 0:
            raise UsageError("ContraNorm: temperature must be positive; got 0. The paper's is 1.")
        self.scale = self._within("scale", scale, -1e3, 1e3, "0 does nothing.")
        self.temperature = self._within("temperature", temperature, 0.0, 1e6, "The paper's is 1.")
        self.eps = self._within("eps", eps, 0.0, 1.0, "It keeps zeros from being divided by.")
        self.form, self.over = self._choose("form", form), self._choose("over", over)

    @property
    def causal_safe(self) -> bool:
        return self.is_off or self.over != "all"

    def act(self, X: Tensor, stretch: Stretch) -> Tensor:
        unit, mask = F.normalize(X, dim=-1), stretch.mask
        seen, causal = None, self.over == "prefix"
        if mask is not None:
            n = X.shape[-2]
            seen = mask.unsqueeze(-2).expand(*mask.shape, n)  # (..., n, n): row t sees column s
            seen = seen.tril() if causal else seen
            seen = seen | torch.eye(n, dtype=torch.bool, device=X.device)  # rows that see nothing may be NaN
        A_X = F.scaled_dot_product_attention(
            unit, unit, X, attn_mask=seen, is_causal=causal and mask is None, scale=1 / self.temperature
        )
        kept = X if self.form == "plain" else (1 + self.scale) * X
        return F.layer_norm(kept - self.scale * A_X, X.shape[-1:], eps=self.eps)
