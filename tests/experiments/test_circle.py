"""The circle's layer against torch's own attention, its points, and a wrong budget."""

import pytest
import torch
from torch import nn

from depthscope.errors import UsageError
from depthscope.experiments.dong2021.circle import SMOKE, Config, Layer, share, true_points, walked
from loops import over


def by_torch(layer, trial, points):
    """One trial's layer with nn.MultiheadAttention; points (B, 2, 2)."""
    W, b = ({name: value[trial].detach() for name, value in part.items()} for part in (layer.W, layer.b))
    d = W["q"].shape[0]
    attention = nn.MultiheadAttention(d, 2, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([W[k].T for k in "qkv"]))
        attention.in_proj_bias.copy_(torch.cat([b[k][0] for k in "qkv"]))
        attention.out_proj.weight.copy_(W["o"].T)
        attention.out_proj.bias.copy_(b["o"][0])
        X = points @ W["read"] + b["read"]
        Y = attention(X, X, X, need_weights=False)[0]
        if layer.variant == "skip":
            Y = Y + X
        if layer.variant == "mlp":
            Y = (Y @ W["up"] + b["up"]).relu() @ W["down"] + b["down"]
        return Y @ W["write"] + b["write"]


@over("variant", ["attention", "mlp", "skip"])
def test_every_trial_is_a_layer_of_its_own(variant):
    layer, points = Layer(variant, 3, 8), torch.randn(5, 2, 2)
    for b in layer.b.values():
        nn.init.normal_(b)
    with torch.no_grad():
        found = layer(points)
    assert found.shape == (3, 5, 2, 2)
    for trial in range(3):
        torch.testing.assert_close(found[trial], by_torch(layer, trial, points), rtol=1e-4, atol=1e-4)


def test_the_true_points_walk_on_the_circle_opposite_to_each_other():
    points = true_points(Config(), torch.arange(1001))
    torch.testing.assert_close(points.norm(dim=-1), torch.full((1001, 2), 0.3))
    torch.testing.assert_close(points[:, 0], -points[:, 1])
    torch.testing.assert_close(points[1000, 0], points[0, 1])  # half a circle


def test_a_layer_is_fed_what_it_gives():
    layer = Layer("skip", SMOKE.trials, 8)
    path = walked(layer, SMOKE)
    with torch.no_grad():
        torch.testing.assert_close(layer(path[:, 6:7])[:, 0], path[:, 7])


def test_shares_count_what_has_flown_off_in_none():
    numbers = {"skip_apart": torch.tensor([0.0, 1.0, torch.nan, 9.0]).view(1, 1, 4)}
    assert float(share(numbers, "skip", 0, 0.05)) == float(share(numbers, "skip", 0.5, 2)) == 0.25


def test_budgets_that_do_not_grow_are_refused():
    with pytest.raises(UsageError, match=r"each more than the one before; got \[300, 200\]"):
        Config(budgets=(300, 200))
