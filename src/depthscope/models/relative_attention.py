"""Attention with relative positions over memory and segment (Dai et al. 2019, 1901.02860, section 3.3)."""

import torch
from torch import Tensor, nn

from depthscope.checks import WITHOUT_FLOAT64
from depthscope.errors import UsageError
from depthscope.models.design import Design
from depthscope.models.segment_memory import Recall
from depthscope.models.sequence_attention import relative_attention


def sinusoids(T: int, d: int, like: Tensor) -> Tensor:
    """R (T + 1, d): a row for each distance k = T ... 0, sin(k w_i) beside cos(k w_i), w_i = 10000^(-2i/d).

    In the dtype and on the device of `like`.
    """
    where = "cpu" if like.device.type in WITHOUT_FLOAT64 else like.device
    distance = torch.arange(T, -1, -1, dtype=torch.float64, device=where)
    w = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64, device=where) / d)
    angle = distance.unsqueeze(-1) * w
    return torch.cat([angle.sin(), angle.cos()], -1)[:, :d].to(like.dtype).to(like.device)


class RelativeAttention(nn.Module):
    """SA(X) = P [M; X] W W_O,    P_ij ~ exp([(q_i + u) . k_j + (q_i + v) . (R_{i-j} W_kR)] / sqrt(d_h)) for j <= i.

    X (B, n, d) -> (B, n, d). Queries are those of the segment X, keys and values those of memory and segment [M; X];
    u and v (h, d_h) are learned for each head and start at zero, where scores have content and position alike.

    Examples:
        >>> attention = ds.models.RelativeAttention(ds.models.Design(d=8, h=2, causal=True))
        >>> attention(torch.randn(3, 4, 8)).shape
        torch.Size([3, 4, 8])
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        if not design.causal or design.attention != "softmax":
            raise UsageError(
                'relative attention: the design must be causal with attention="softmax"; got '
                f"causal={design.causal} and attention={design.attention!r}. Leave both out."
            )
        d, bias = design.d, design.bias
        self.h = design.h
        self.read = nn.Identity()  # a module, so that remedies at attn_in act before anything is remembered
        self.W_q, self.W_k, self.W = (nn.Linear(d, d, bias=bias) for _ in range(3))
        self.W_kR = nn.Linear(d, d, bias=False)
        self.W_O = nn.Linear(d, d, bias=bias) if design.output else None
        self.u, self.v = (nn.Parameter(torch.zeros(self.h, d // self.h)) for _ in range(2))

    def _split(self, X: Tensor) -> Tensor:
        return X.unflatten(-1, (self.h, -1)).transpose(-2, -3)  # (..., h, n, d/h)

    def forward(self, X: Tensor, recall: Recall | None = None) -> Tensor:
        X = self.read(X)
        recall = recall or Recall(sinusoids(X.shape[-2], X.shape[-1], X))
        recall.leave(X)
        q, k, v = (self._split(W(X)) for W in (self.W_q, self.W_k, self.W))
        if recall.before is not None:  # apart from X: no gradient into it is computed only to be thrown away
            k, v = (torch.cat([self._split(W(recall.before)), x], -2) for W, x in ((self.W_k, k), (self.W, v)))
        content, position = (q + bias.unsqueeze(-2).to(q.dtype) for bias in (self.u, self.v))  # autocast: q is narrower
        mixed = relative_attention(content, position, k, v, self._split(self.W_kR(recall.R)))
        joined = mixed.transpose(-2, -3).flatten(-2)  # (..., n, d)
        return joined if self.W_O is None else self.W_O(joined)

    def extra_repr(self) -> str:
        return f"h={self.h}"
