"""The laws of depth against the recursion of two numbers, run for as many blocks as it takes."""

import math

import pytest
import torch

from depthscope.errors import UsageError
from depthscope.theory.depth_laws import (
    deep_norm_growth,
    depth_scaled_growth,
    kernel_slope,
    layer_norm_scaling_decay,
    pre_norm_decay,
    pre_norm_exponent,
)
from depthscope.theory.stacks import overlaps_by_depth
from depthscope.theory.two_numbers import hidden_overlaps
from loops import over

N = 32


def apart(**numbers) -> torch.Tensor:
    """1 - rho before block 1 and after every block."""
    return torch.tensor([x.D / x.q for x in overlaps_by_depth(n=N, **numbers)], dtype=torch.float64)


def odds_growth(**numbers) -> float:
    first, *_, last = (x.t_sim(N) / x.t_div(N) for x in overlaps_by_depth(n=N, **numbers))
    return last / first


@over("s_A, k, t_sim", [(1.0, 0.0, None), (1.0, 1 / 18, None), (1.0, 1.0, None), (0.1, 0.4, 0.9999)])
def test_pre_norm_is_a_power_law(s_A: float, k: float, t_sim: float | None) -> None:
    """Fitted between 5,000 and 10,000 blocks. A strong network needs more than these to come near collapse."""
    e = apart(depth=10_000, s_A=s_A, k=k, wiring="pre_norm", t_sim=t_sim)
    fitted = -math.log(float(e[10_000] / e[5_000])) / math.log(2)
    assert fitted == pytest.approx(pre_norm_exponent(s_A, k), abs=0.02)


def test_networks_that_are_not_relu_have_a_slope() -> None:
    slope = kernel_slope("gelu", hidden_variance=0.5)
    e = apart(depth=10_000, s_A=0.3, k=0.6, wiring="pre_norm", activation="gelu", hidden_variance=0.5)
    fitted = -math.log(float(e[10_000] / e[5_000])) / math.log(2)
    assert fitted == pytest.approx(pre_norm_exponent(0.3, 0.6, slope=slope), abs=0.01)
    assert abs(fitted - pre_norm_exponent(0.3, 0.6)) > 0.03


@over("activation", ["gelu", "silu", "tanh", "swiglu"])
@over("variance", [0.2, 1.0])
def test_the_slope_is_the_derivative(activation: str, variance: float) -> None:
    whole, moved = hidden_overlaps(activation, variance, 1e-7)
    assert kernel_slope(activation, hidden_variance=variance) == pytest.approx(moved / whole / 1e-7, rel=1e-4)
    assert kernel_slope("relu") == 1.0


@over("s_A, k", [(1.0, 0.0), (0.3, 0.2), (2.0, 0.5)])
def test_pre_norm_near_collapse_is_exact(s_A: float, k: float) -> None:
    e = apart(depth=50, s_A=s_A, k=k, wiring="pre_norm", t_sim=1 - 1e-12)
    found = pre_norm_decay(torch.arange(51), s_A=s_A, k=k)
    torch.testing.assert_close(e / e[0], found, rtol=1e-4, atol=0.0)
    far = pre_norm_decay(2e6, s_A=s_A, k=k) / pre_norm_decay(1e6, s_A=s_A, k=k)
    assert -math.log2(far) == pytest.approx(pre_norm_exponent(s_A, k), abs=1e-4)


def test_layer_norm_scaling_is_a_power_of_a_logarithm() -> None:
    e = apart(depth=1000, s_A=0.1, k=0.1, wiring="layer_norm_scaling", t_sim=1 - 1e-10)
    assert float(e[-1] / e[0]) == pytest.approx(layer_norm_scaling_decay(1000, s_A=0.1, k=0.1), rel=0.02)
    assert layer_norm_scaling_decay(1000, s_A=0.1, k=0.1) > 2 * pre_norm_decay(1000, s_A=0.1, k=0.1)
    assert layer_norm_scaling_decay(0, s_A=1.0, k=0.0) == 1.0


def test_deep_norm_forgets_to_collapse() -> None:
    for depth in (10, 100, 1000):
        found = odds_growth(depth=depth, wiring="deep_norm")
        assert found == pytest.approx(deep_norm_growth(depth), rel=1e-9)
        assert found == pytest.approx(1 + 1 / (8 * math.sqrt(2 * depth)), rel=1e-3)
    with_network = odds_growth(depth=1000, wiring="deep_norm", k=0.32)
    assert deep_norm_growth(1000) < with_network < 1.1


def test_depth_scaling_is_bounded() -> None:
    assert odds_growth(depth=200, alpha=1.5, wiring="depth_scaled") == pytest.approx(
        depth_scaled_growth(1.5, depth=200)
    )
    assert depth_scaled_growth(1.5, depth=1e7) == pytest.approx(depth_scaled_growth(1.5), rel=1e-5)
    assert depth_scaled_growth(1.0) == pytest.approx(math.e)
    near = odds_growth(depth=200, wiring="depth_scaled", k=0.3, t_sim=1 - 1e-10)  # where the network adds nothing
    assert near == pytest.approx(depth_scaled_growth(1.0, depth=200), rel=1e-3)


def test_tensors_and_wrong_use() -> None:
    both = pre_norm_exponent(torch.tensor([1.0, 2.0]), 1.0)
    torch.testing.assert_close(both, torch.tensor([0.5, 2 / 3], dtype=torch.float64))
    with pytest.raises(UsageError, match="deep_norm_growth: depth must lie in"):
        deep_norm_growth(-1)
    with pytest.raises(UsageError, match="depth_scaled_growth: c must lie in"):
        depth_scaled_growth(-1.0)


def test_decay_from_large_and_from_other_energies() -> None:
    """Against the product that it is; for large q Gamma functions would cancel."""
    for depth, s_A, k, q in ((40, 1.0, 0.3, 5.0), (10, 1e-3, 0.0, 1e9), (100, 1e-3, 0.0, 1e6), (300, 0.2, 0.7, 900.0)):
        product = 1.0
        for block in range(depth):
            product *= 1 - s_A / (q + block * (s_A + k) + s_A)
        assert pre_norm_decay(depth, s_A=s_A, k=k, q=q) == pytest.approx(product, rel=1e-9)
    assert pre_norm_decay(7, s_A=0.0, k=0.0) == 1.0


@over("activation, variance, slope", [("tanh", 100.0, 5.77), ("gelu", 100.0, 1.011)])
def test_slopes_of_steep_activations(activation: str, variance: float, slope: float) -> None:
    assert kernel_slope(activation, hidden_variance=variance) == pytest.approx(slope, rel=2e-3)
