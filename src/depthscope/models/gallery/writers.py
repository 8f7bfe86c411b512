"""What constructed models write into their stream: massive tokens, shared directions, lines, and damage."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depthscope.models.gallery.coded import MARK


class Neuron(nn.Module):
    """X + relu(mark) v: marked tokens get a large vector, as the massive tokens of trained models do."""

    def __init__(self, v: Tensor) -> None:
        super().__init__()
        self.v = nn.Parameter(v)

    def forward(self, X: Tensor) -> Tensor:
        return X + F.relu(X[..., MARK : MARK + 1]) * self.v


class Shared(nn.Module):
    """X + v: the same for all tokens, as a bias."""

    def __init__(self, v: Tensor) -> None:
        super().__init__()
        self.v = nn.Parameter(v)

    def forward(self, X: Tensor) -> Tensor:
        return X + self.v


class Line(nn.Module):
    """X + rate (X U U^T - X): what does not lie along the columns of U (d, k) fades; k = 1 is a line."""

    def __init__(self, U: Tensor, rate: float) -> None:
        super().__init__()
        self.U, self.rate = nn.Parameter(U), rate

    def forward(self, X: Tensor) -> Tensor:
        return X + self.rate * (X @ self.U @ self.U.T - X)


class Centre(nn.Module):
    """X - (1/n) sum_i x_i: mean pooling finds nothing after it."""

    def forward(self, X: Tensor) -> Tensor:
        return X - X.mean(-2, keepdim=True)


class Overflow(nn.Module):
    """X + exp(1000 mark) - 1: infinite in marked tokens, nothing in all others."""

    def forward(self, X: Tensor) -> Tensor:
        return X + torch.expm1(1000 * X[..., MARK : MARK + 1])


class MeanHead(nn.Module):
    """Scores from the mean token."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.head = nn.Linear(d, 5)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(X.mean(-2))


class MassiveToken(nn.Module):
    """A block, after which the tokens at some positions get a large vector."""

    def __init__(self, block: nn.Module, v: Tensor, positions: tuple[int, ...]) -> None:
        super().__init__()
        self.block, self.v, self.positions = block, nn.Parameter(v), positions

    def forward(self, X: Tensor, *args: object, **kwargs: object) -> Tensor:
        Y = self.block(X, *args, **kwargs)
        Y = Y[0] if isinstance(Y, tuple) else Y
        place = torch.arange(Y.shape[-2], device=Y.device)
        chosen = sum((place == p for p in self.positions), torch.zeros_like(place)).to(Y)
        return Y + chosen[:, None] * self.v


class HiddenJoin(torch.autograd.Function):
    """x + y where no torch function is seen to add."""

    @staticmethod
    def forward(ctx: object, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


class HiddenBlock(nn.Module):
    """A post-norm block of the reference kind whose sums no watcher can see."""

    def __init__(self, attention: nn.Module, ffn: nn.Module, d: int, scale: float) -> None:
        super().__init__()
        self.attention, self.ffn, self.scale = attention, ffn, scale
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, X: Tensor) -> Tensor:
        Y = self.norm_1(HiddenJoin.apply(X, self.scale * self.attention(X)))
        return self.norm_2(HiddenJoin.apply(Y, self.scale * self.ffn(Y)))
