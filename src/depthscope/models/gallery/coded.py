"""A stack whose end is known beforehand: the inputs say which tokens become the same.

The first CODES channels of a token are its code, a row of signs. Attention reads codes alone, so sharply that tokens of
one code take their mean and see nobody else. Tokens of one code grow alike by 1 - mix a block; a token with a code of
its own sees itself alone and stays what it is. Channel MARK is 0 or 1: marked tokens are those that a neuron fires on.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CODES = 12
MARK = CODES  # the channel after the codes
KEPT = CODES + 1  # channels that no feed-forward network writes to
SHARP = 16.0  # one sign apart, a token gets exp(-2 SHARP) of the attention


class CodeAttention(nn.Module):
    """SA(X)_i = the mean of x_j over tokens j of the same code."""

    def forward(self, X: Tensor, valid: Tensor | None = None) -> Tensor:
        code = X[..., :CODES].unsqueeze(-3)  # one head
        seen = None if valid is None else valid[:, None, None, :].bool()
        return F.scaled_dot_product_attention(code, code, X.unsqueeze(-3), seen, scale=SHARP).squeeze(-3)


class Network(nn.Module):
    """gain W_2 relu(W_1 LN(x)), with nothing written to codes and mark."""

    def __init__(self, d: int, gain: float) -> None:
        super().__init__()
        self.norm, self.W_1, self.W_2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d, bias=False)
        with torch.no_grad():
            self.W_2.weight.mul_(gain)
            self.W_2.weight[:KEPT] = 0

    def forward(self, X: Tensor) -> Tensor:
        return self.W_2(F.relu(self.W_1(self.norm(X))))


class CodedBlock(nn.Module):
    """Y = (1 - mix) X + mix SA(X),  Z = Y + FFN(Y),  then what is written into the stream here, if anything."""

    def __init__(self, d: int, mix: float, gain: float, write: nn.Module | None) -> None:
        super().__init__()
        self.mix, self.attention, self.ffn, self.write = mix, CodeAttention(), Network(d, gain), write

    def forward(self, X: Tensor, valid: Tensor | None = None) -> Tensor:
        Y = (1 - self.mix) * X + self.mix * self.attention(X, valid)
        Z = Y + self.ffn(Y)
        return Z if self.write is None else self.write(Z)


class Coded(nn.Module):
    """Embedded tokens (B, n, d) through coded blocks; mixes: one for each block. head: what reads the last state."""

    def __init__(
        self,
        d: int,
        mixes: Sequence[float],
        *,
        gain: float = 0.02,
        write: Callable[[int], nn.Module | None] = lambda index: None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CodedBlock(d, mix, gain, write(i)) for i, mix in enumerate(mixes, 1))
        self.head = nn.Linear(d, 5) if head is None else head

    def forward(self, X: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            X = block(X, attention_mask)
        return self.head(X)


def coded_tokens(groups: Tensor, d: int, *, marked: Sequence[int] = ()) -> Tensor:
    """Gaussian tokens with the codes of their groups: groups (B, n) of whole numbers -> (B, n, d)."""
    signs = _distinct_signs(int(groups.max()) + 1)
    X = torch.randn(*groups.shape, d)
    X[..., :CODES] = signs[groups]
    X[..., MARK] = 0
    X[:, list(marked), MARK] = 1
    return X


def _distinct_signs(count: int) -> Tensor:
    """Rows of signs of which no two are the same: (count, CODES)."""
    numbers = torch.randperm(2**CODES)[:count]
    return 2.0 * (numbers[:, None] >> torch.arange(CODES) & 1) - 1
