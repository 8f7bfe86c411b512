"""Feed-forward networks by the name of their activation (Algorithm 1, step 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.models.design import Design
from depthscope.registry import shelve


class FeedForward(nn.Module):
    """FFN(Y) = hidden(Y) W_2,    Y (..., n, d), hidden(Y) (..., n, q), W_1 and W_2^T d x q.

    Examples:
        >>> block = ds.models.Block(ds.models.Design(d=8, q=32, activation="gelu"))
        >>> isinstance(block.ffn, ds.models.FeedForward), block.ffn(torch.randn(3, 4, 8)).shape
        (True, torch.Size([3, 4, 8]))
    """

    def __init__(self, design: Design) -> None:
        super().__init__()
        d, q, bias = design.d, design.ffn_width, design.bias
        self.W_1, self.W_2 = nn.Linear(d, q, bias=bias), nn.Linear(q, d, bias=bias)

    def hidden(self, Y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, Y: Tensor) -> Tensor:
        return self.W_2(self.hidden(Y))


@shelve("activation", name="relu")
class ReLU(FeedForward):
    """FFN(Y) = max(Y W_1, 0) W_2"""

    def hidden(self, Y: Tensor) -> Tensor:
        return F.relu(self.W_1(Y))


@shelve("activation", name="gelu")
class GELU(FeedForward):
    """FFN(Y) = gelu(Y W_1) W_2,    gelu(x) = x Phi(x)"""

    def hidden(self, Y: Tensor) -> Tensor:
        return F.gelu(self.W_1(Y))


@shelve("activation", name="swiglu")
class SwiGLU(FeedForward):
    """FFN(Y) = (silu(Y W_gate) * Y W_1) W_2.    Shazeer 2020"""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self.W_gate = nn.Linear(design.d, design.ffn_width, bias=design.bias)

    def hidden(self, Y: Tensor) -> Tensor:
        return F.silu(self.W_gate(Y)) * self.W_1(Y)


@shelve("activation", name="none")
class NoNetwork(nn.Module):
    """FFN(Y) = 0: attention, residuals and norms alone, as Dong et al. 2021 train their small tasks"""

    def __init__(self, design: Design) -> None:
        super().__init__()

    def forward(self, Y: Tensor) -> Tensor:
        return torch.zeros_like(Y)
