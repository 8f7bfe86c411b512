"""Tokens (n, B, d) that are mixed without a pattern: every verb takes the axis along which tokens move each other."""

import pytest
import torch
from torch import Tensor, nn

import depthscope as ds

B, N, D = 3, 12, 16


class Linear(nn.Module):
    """x + phi(q) (phi(k)^T v), time first: no softmax, no pattern."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(0, 1) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = (q.exp() @ (k.exp().mT @ v)) / (q.exp() @ k.exp().sum(1, keepdim=True).mT)
        x = x + self.out(mixed.transpose(0, 1))
        return x + self.mlp(x)


def built(sequences: int = B) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(Linear() for _ in range(4))).eval(), torch.randn(N, sequences, D) + 0.3


def similarity(X: Tensor) -> float:
    X = X.double()
    return float((N * X.mean(0).square().sum(-1) / X.square().sum((0, 2))).mean())


@torch.no_grad()
@pytest.mark.parametrize("attention", [True, False])
def test_a_scan_measures_tokens_and_not_sequences(attention: bool) -> None:
    model, x = built()
    states = [x]
    for block in model:
        states.append(block(states[-1]))
    found = ds.scan(model, x, attention=attention)
    assert found["t_sim"].tolist() == pytest.approx([similarity(X) for X in states], abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("causal", ["auto", "no"])
def test_a_remedy_does_not_mix_sequences(causal: str) -> None:
    model, x = built()
    true = x
    for block in model:
        true = block(true)
        true = true - true.mean(0, keepdim=True)
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out", causal=causal):
        found = model(x)
    assert torch.allclose(found, true, atol=1e-5)


@torch.no_grad()
def test_states_of_blocks_that_mix_nothing_are_measured_without_attention() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D)) for _ in range(3))).eval()
    x = torch.randn(B, N, D) + 0.3
    found = ds.scan(model, x, attention=False)
    assert found.depth == 3
    assert float(found["t_sim"][0]) == pytest.approx(similarity(x.transpose(0, 1)), abs=1e-6)
