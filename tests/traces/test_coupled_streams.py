"""Two streams of which each is changed by what the other holds, and sums that nobody reads."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import BlocksNotFoundError

B, N, D, H = 3, 10, 16, 2


class Attention(nn.Module):
    """softmax(q k^T + earlier) v, and its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor, earlier: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT * (D // H) ** -0.5
        scores = scores if earlier is None else scores + earlier
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)), scores


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm, self.mlp = Attention(), nn.LayerNorm(D), nn.Sequential(nn.Linear(D, D), nn.GELU())

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """y_1 = x_1 + f(x_2), y_2 = x_2 + g(y_1)."""
        a = a + self.attn(self.norm(b))[0]
        return a, b + self.mlp(a)


class Pair(nn.Module):
    """As Reformer runs them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x, x
        for layer in self.layers:
            a, b = layer(a, b)
        return torch.cat([a, b], -1)


class Wrapped(nn.Module):
    """What the refusal advises."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.layer(*x.chunk(2, -1)), -1)


class ResidualScores(nn.Module):
    """Post-norm blocks that hand their scores on, as RealFormer does: scores are summed along the blocks too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        scores = None
        for layer in self.layers:
            branch, scores = layer.attn(x, scores)
            x = layer.norm(x + branch)
            x = layer.norm(x + layer.mlp(x))
        return x


def tokens(d: int = D) -> Tensor:
    return torch.randn(B, N, d, generator=torch.Generator().manual_seed(1)) + 0.3


def similarity(X: Tensor) -> float:
    X = X.double()
    return float((N * X.mean(1).square().sum(-1) / X.square().sum((1, 2))).mean())


def fixed(model: nn.Module, x: Tensor) -> Tensor:
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out"):
        return model(x)


@pytest.mark.parametrize("verb", [ds.scan, ds.forecast, fixed])
def test_a_reversible_pair_is_refused_with_what_helps(verb) -> None:
    torch.manual_seed(0)
    with pytest.raises(BlocksNotFoundError, match=r"layers\.\* of Pair.*reversible pair.*torch\.cat"):
        verb(Pair().eval(), tokens())


@torch.no_grad()
def test_what_helps_does() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*map(Wrapped, Pair().layers)).eval(), tokens(2 * D)
    states = [x]
    for block in model:
        states.append(block(states[-1]))
    assert ds.scan(model, x)["t_sim"].tolist() == pytest.approx([similarity(X) for X in states], abs=1e-6)


@torch.no_grad()
def test_scores_that_are_summed_are_no_stream() -> None:
    torch.manual_seed(0)
    model, x = ResidualScores().eval(), tokens()
    true, scores = x, None
    for layer in model.layers:
        branch, scores = layer.attn(true, scores)
        true = layer.norm(true + branch)
        true = layer.norm(true + layer.mlp(true))
        true = true - true.mean(1, keepdim=True)
    assert list(ds.scan(model, x).streams) == ["main"]
    assert torch.allclose(fixed(model, x), true, atol=1e-5)
