"""The parts of a block, each in the ways in which people write it: sums, products with a matrix, attention, norms."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEPTH, D, HEADS, N, B = 3, 32, 4, 10, 3
HIDDEN, LOW = 48, 8  # widths of the network and of what is narrow
DEEP = 1.7  # the factor on the skip, as in DeepNorm
EPS = 1e-5


def _iadd(x: Tensor, y: Tensor) -> Tensor:
    x += y
    return x


# spelling -> the sum of stream x and branch y, the factor on x, the factor on y
SUMS: dict[str, tuple[Any, float, float]] = {
    "x + y": (lambda x, y: x + y, 1, 1),
    "y + x": (lambda x, y: y + x, 1, 1),
    "torch.add(x, y)": (torch.add, 1, 1),
    "torch.add(x, other=y)": (lambda x, y: torch.add(x, other=y), 1, 1),
    "torch.add(x, y, alpha=.5)": (lambda x, y: torch.add(x, y, alpha=0.5), 1, 0.5),
    "torch.add(y, x, alpha=a)": (lambda x, y: torch.add(y, x, alpha=DEEP), DEEP, 1),
    "x.add(y)": (lambda x, y: x.add(y), 1, 1),
    "x.add_(y)": (lambda x, y: x.add_(y), 1, 1),
    "x += y": (_iadd, 1, 1),
    "y += x": (lambda x, y: _iadd(y, x), 1, 1),
    "a * x + y": (lambda x, y: DEEP * x + y, DEEP, 1),
    "x.mul(a) + y": (lambda x, y: x.mul(DEEP) + y, DEEP, 1),
    "x + .5 * y": (lambda x, y: x + 0.5 * y, 1, 0.5),
}

# spelling -> x W + b
PROJECTIONS = {
    "F.linear": lambda x, W, b: F.linear(x, W.mT, b),
    "x @ W + b": lambda x, W, b: x @ W + b,
    "torch.matmul": lambda x, W, b: torch.matmul(x, W) + b,
    "torch.einsum": lambda x, W, b: torch.einsum("bnd,de->bne", x, W) + b,
    "torch.addmm": lambda x, W, b: torch.addmm(b, x.reshape(-1, len(W)), W).view(*x.shape[:-1], -1),
}


def softmax_of(q: Tensor, k: Tensor, hidden: Tensor | None) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(-1)


def _by_matmul(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)).div(q.shape[-1] ** 0.5)
    return torch.matmul(F.softmax(scores if hidden is None else scores + hidden.double() * -1e9, dim=-1), v)


def _by_einsum(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    scores = torch.einsum("bhnd,bhmd->bhnm", q * q.shape[-1] ** -0.5, k)
    scores = scores if hidden is None else scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("bhnm,bhmd->bhnd", torch.softmax(scores, -1), v)


def _by_bmm(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    front = q.shape[:2]
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))  # (B h, n, d_h)
    scores = torch.bmm(q, k.mT) * q.shape[-1] ** -0.5
    P = (scores if hidden is None else scores.masked_fill(hidden, -torch.inf)).softmax(dim=-1)
    return torch.bmm(P, v).unflatten(0, front)


# spelling -> attention of q, k, v (B, h, n, d_h); hidden (n, n): keys that are not to be seen, or None
ATTENTIONS = {
    "sdpa": lambda q, k, v, hidden: F.scaled_dot_product_attention(q, k, v, is_causal=hidden is not None),
    "softmax @": lambda q, k, v, hidden: softmax_of(q, k, hidden) @ v,
    "torch.matmul": _by_matmul,
    "torch.einsum": _by_einsum,
    "torch.bmm": _by_bmm,
}


class RMSNorm(nn.Module):
    """As Llama has it, with the name that everybody gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS))


NORM_MODULES = {
    "nn.LayerNorm": lambda: nn.LayerNorm(D, EPS),
    "nn.RMSNorm": lambda: nn.RMSNorm(D, EPS),
    "class RMSNorm": RMSNorm,
}
# spelling -> the norm of x with scale g and offset c
NORM_FUNCTIONS = {
    "F.layer_norm": lambda x, g, c: F.layer_norm(x, (D,), g, c, EPS),
    "F.rms_norm": lambda x, g, c: F.rms_norm(x, (D,), g, EPS),
    "written out": lambda x, g, c: (
        (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, correction=0, keepdim=True) + EPS) * g + c
    ),
}
NORMS = (*NORM_MODULES, *NORM_FUNCTIONS)


class Conv1D(nn.Module):
    """The matrix of GPT-2."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(rows, columns)), nn.Parameter(torch.empty(columns))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)
