"""bfloat16 and float16 models, and autocast: scan, fix_ and forecast against float64 on the states that hooks saw."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import depthscope as ds
from loops import crossed, over

WAYS = {
    "bfloat16": (torch.bfloat16, nullcontext),
    "float16": (torch.float16, nullcontext),
    "autocast": (torch.float32, lambda: torch.autocast("cpu", torch.bfloat16)),
}
DESIGNS = ({}, {"causal": True, "wiring": "pre_norm"})
X = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))


def built(dtype: torch.dtype, choices: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return ds.models.classic(4, 32, 4, **choices).to(dtype).eval()


@torch.no_grad()
def states(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The input of the first block and what every block gives, by hooks that come after all others."""
    seen: list[Tensor] = []
    model(x)  # the hooks of a remedy are set in its first pass
    hooks = [model.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))]
    hooks += [block.register_forward_hook(lambda *call: seen.append(call[-1].clone())) for block in model.blocks]
    model(x)
    for hook in hooks:
        hook.remove()
    return seen


def t_sim(X: Tensor) -> float:
    """1 - |X - mean|^2 / |X|^2, in float64, the mean over sequences."""
    X = X.double()
    apart = (X - X.mean(1, keepdim=True)).square().sum((1, 2)) / X.square().sum((1, 2))
    return float((1 - apart).mean())


@over("way", list(WAYS))
@over("choices", DESIGNS)
def test_a_scan_measures_the_states_as_they_are(way: str, choices: dict[str, Any]) -> None:
    dtype, context = WAYS[way]
    model, x = built(dtype, choices), X.to(dtype)
    with context():
        truth = [t_sim(state) for state in states(model, x)]
        found = ds.scan(model, x)["t_sim"].tolist()
    assert max(abs(a - b) for a, b in zip(found, truth, strict=True)) < 1e-7


@crossed("at, way, choices", ["block_in", "sa_out", "ffn_in", "block_out"], list(WAYS), DESIGNS)
def test_a_remedy_acts_in_half_precision(way: str, choices: dict[str, Any], at: str) -> None:
    dtype, context = WAYS[way]
    model, x = built(dtype, choices), X.to(dtype)
    with context():
        plain = states(model, x)
        with ds.fix_(model, ds.remedies.DeEscalate(0.5), at=at):
            fixed = states(model, x)
            found = ds.scan(model, x)["t_sim"].tolist()
    assert max(abs(a - t_sim(b)) for a, b in zip(found, fixed, strict=True)) < 1e-7
    assert [state.dtype for state in fixed] == [state.dtype for state in plain]
    exact = built(torch.float32, choices)
    with ds.fix_(exact, ds.remedies.DeEscalate(0.5), at=at):
        expected = states(exact, X)[-1]
    error = (fixed[-1].double() - expected.double()).norm() / expected.double().norm()
    assert error < (0.004 if dtype == torch.float16 else 0.04)  # some eps of the dtype: 1e-3, 8e-3


@over("way", list(WAYS))
@over("choices", DESIGNS)
def test_a_forecast_is_that_of_the_same_weights(way: str, choices: dict[str, Any]) -> None:
    dtype, context = WAYS[way]
    model, x = built(dtype, choices), X.to(dtype)
    with context():
        found = ds.forecast(model, x).t_sim
    torch.testing.assert_close(found, ds.forecast(model.float(), x.float()).t_sim, rtol=0, atol=1e-6)


def test_autocast_rounds_the_model_and_not_what_is_measured() -> None:
    """Statistics of heads under autocast are those of the very attention, in full precision."""
    torch.manual_seed(0)
    kept: list[Tensor] = []

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            P = (q @ k.mT).float().softmax(-1)
            kept.append(P.detach())
            return x + self.out((P @ v.float()).transpose(1, 2).flatten(2))

    model, x = nn.Sequential(*(Attention() for _ in range(3))).eval(), torch.randn(2, 40, 32)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        scan = ds.scan(model, x)
        kept.clear()
        model(x)
    P = torch.stack(kept)
    for name in ("delta", "lambda_2", "attention_entropy"):
        truth = getattr(ds.metrics, name)(P).mean(1)
        torch.testing.assert_close(scan.per_head(name), truth, rtol=1e-4, atol=1e-6)
