"""Which of several tensors that blocks hand on is the stream, and which entries of a list are blocks, in a forecast."""

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds

N, D, DEPTH = 12, 32, 4
X = torch.randn(2, N, D, generator=torch.Generator().manual_seed(0)) + 0.4
State = namedtuple("State", "weights tokens")


class Residual(nn.Module):
    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(D), fn

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fn(self.norm(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((q @ k.mT / D**0.5).softmax(-1) @ v)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.network = Residual(Attention()), Residual(network())

    def both(self, x: Tensor) -> Tensor:
        return self.network(self.attend(x))


class Named(Block):
    def forward(self, state: State) -> State:
        x = self.both(state.tokens)
        return State((x @ x.mT).softmax(-1), x)


class Growing(Block):
    def forward(self, states: list[Tensor]) -> list[Tensor]:
        return [*states, self.both(states[-1])]


class Model(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        state: Any = State(torch.zeros(len(x), N, N), x) if isinstance(self.blocks[0], Named) else [x]
        for block in self.blocks:
            state = block(state)
        return state[-1]


def halves() -> nn.Module:
    return nn.Sequential(*(Residual(part) for _ in range(DEPTH) for part in (Attention(), network())))


@pytest.mark.parametrize("make", [lambda: Model(Named), lambda: Model(Growing), halves])
def test_the_forecast_is_of_the_stream_that_a_scan_measures(make: Any) -> None:
    torch.manual_seed(0)
    model = make().eval()
    measured, forecast = ds.scan(model, X)["t_sim"], ds.forecast(model, X).t_sim
    assert len(forecast) == DEPTH + 1
    torch.testing.assert_close(forecast.double(), measured.double(), atol=0.06, rtol=0)
