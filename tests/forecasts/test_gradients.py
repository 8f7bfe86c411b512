"""Growth of token gradients from a design: its gains against built weights, and where the theory does not reach."""

import pytest
import torch

from depthscope.forecasts.numbers import growth_of_design, numbers_of_design
from depthscope.models.design import Design, shelves
from depthscope.models.transformer import Transformer
from depthscope.registry import TABLES
from loops import over

shelves()
COVERED = [
    name for name in sorted(TABLES["wiring"]) if growth_of_design(Design(3, wiring=name), 8, t_sim=0.2) is not None
]


def test_blocks_with_norms_before_branches_or_after_sums_are_covered() -> None:
    plain = {"post_norm", "admin", "deep_norm", "depth_scaled", "mix_ln"}
    assert plain | {"pre_norm", "layer_scale", "skip_init", "rezero"} <= set(COVERED)
    assert {"resi_dual", "b2t", "sandwich", "hyper_connections"}.isdisjoint(COVERED)


@over("weights", sorted(TABLES["weight law"]))
@over("activation, output", [("relu", True), ("gelu", False), ("swiglu", True)])
def test_gains_are_those_of_a_model(weights: str, activation: str, output: bool) -> None:
    torch.manual_seed(0)
    design = Design(1, 256, 4, q=512, alpha=0.7, activation=activation, weights=weights, output=output)
    numbers = numbers_of_design(design)
    s, v, k = 0.49 * numbers["s_A"], numbers["score_variance"], numbers["k"]
    block = Transformer(design).blocks[0].requires_grad_(False)
    X = torch.randn(4000, 256)
    X = X / X.square().mean(-1, keepdim=True).sqrt()
    SA = block.attention
    joined = SA.W(X) if SA.W_O is None else SA.W_O(SA.W(X))
    assert s == pytest.approx(0.49 * float(joined.square().mean()), rel=0.06)
    assert v == pytest.approx(float(SA.W_q(X).square().mean() * SA.W_k(X).square().mean()), rel=0.06)
    assert k == pytest.approx(float(block.ffn(X).square().mean()), rel=0.06)


@over("wiring", COVERED)
@over("activation, tau", [("swiglu", 0.6)], long=[("relu", 0.6), ("gelu", 1.0)])
def test_the_forecast_of_a_wiring_is_what_autograd_finds(wiring: str, activation: str, tau: float) -> None:
    design = Design(12, 64, 4, wiring=wiring, activation=activation, weights="xavier", output=True)
    forecast = growth_of_design(design, 16, t_sim=1 / 16, tau=tau)
    assert forecast is not None and forecast.shape == (12,)
    torch.manual_seed(1)
    logs = []
    for _ in range(6):
        model, states = Transformer(design), [torch.randn(4, 16, 64).requires_grad_()]
        for block in model:
            Y = block(states[-1])
            states.append(Y - tau * Y.mean(-2, keepdim=True))
        found = torch.autograd.grad((states[-1][:, 0] * torch.randn(4, 64)).sum(), states)
        norms = torch.stack([g.double().norm() for g in found])
        logs.append((norms[:-1] / norms[1:]).log()[3:9].mean())
    assert float(forecast[3:9].log().mean()) == pytest.approx(float(torch.stack(logs).mean()), abs=0.02)


def test_scores_are_multiplied_as_their_matrices_are() -> None:
    sharp = Design(8, 64, 4, weights="xavier", output=True)
    calm = growth_of_design(sharp, 16, t_sim=0.1, tau=1.0, scores=0.1)
    plain, uniform = (
        growth_of_design(d, 16, t_sim=0.1, tau=1.0)
        for d in (sharp, Design(8, 64, 4, weights="xavier", output=True, attention="uniform"))
    )
    assert calm is not None and plain is not None and uniform is not None
    assert bool((plain[2:6] > calm[2:6]).all()) and float((calm - uniform).abs().max()) < 0.01


@over(
    "choices",
    [{"causal": True}, {"bias": True}, {"wiring": "sandwich"}, {"attention": "sigmoid"}, {"wiring": "sub_ln"}],
)
def test_none_where_the_theory_does_not_reach(choices: dict) -> None:
    assert growth_of_design(Design(3, 16, 2, **choices), 8, t_sim=0.2, tau=0.0) is None


def test_none_where_there_is_nothing_to_compare() -> None:
    assert growth_of_design(Design(3, 16, 2), 1, t_sim=1.0, tau=0.0) is None
    assert growth_of_design(Design(3, 16, 2), 4, t_sim=1.0, tau=1.0) is None
    assert growth_of_design(Design(3, 16, 2), 4, t_sim=1.0, tau=0.0) is not None
