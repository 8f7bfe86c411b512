"""Kernels of activations and the participation ratio of attention, against Monte Carlo and closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from depthscope.errors import UnknownNameError, UsageError
from depthscope.theory import kernels
from depthscope.theory.kernels import ACTIVATIONS, gauss_hermite, hermite_coefficients, kernel, series
from depthscope.theory.participation import participation, participation_by_table, together
from loops import over


def covariance(n: int, seed: int = 0) -> torch.Tensor:
    L = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return L @ L.T / n


@over("name", sorted(ACTIVATIONS))
def test_a_kernel_is_the_expectation(name: str) -> None:
    C, draws = covariance(5), 400_000
    g = torch.Generator().manual_seed(1)
    f = ACTIVATIONS[name](torch.linalg.cholesky(C) @ torch.randn(5, draws, generator=g, dtype=torch.float64))
    products = f.unsqueeze(0) * f.unsqueeze(1)  # (5, 5, draws)
    error = products.std(-1) / draws**0.5
    assert bool(((kernel(name, C) - products.mean(-1)).abs() < 4 * error).all())


@given(st.floats(-1, 1), st.floats(0.1, 3))
def test_the_series_of_relu_tends_to_the_arc_cosine_kernel(rho: float, sigma: float) -> None:
    C = sigma**2 * torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64)
    a = hermite_coefficients(torch.relu, torch.tensor(sigma))
    assert abs(float(series(a**2, torch.tensor(rho).double())) - float(kernel("relu", C)[0, 1])) < 2e-3 * sigma**2


def test_known_values() -> None:
    C = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert float(kernel("relu", C)[0, 1]) == pytest.approx(1 / (2 * math.pi))  # kappa(0) / 2 = 1 / 2 pi
    assert float(kernel("relu", C)[0, 0]) == pytest.approx(0.5)
    assert float(kernel("gelu", C)[0, 1]) == pytest.approx(
        (1 / (2 * math.sqrt(math.pi))) ** 2
    )  # E gelu(g) = 1 / 2 sqrt pi
    torch.testing.assert_close(kernel("identity", covariance(4)), covariance(4))
    assert float(kernel("tanh", C)[0, 1]) == pytest.approx(0.0, abs=1e-12)  # odd
    with pytest.raises(UnknownNameError, match="no activation is called 'relo'"):
        kernel("relo", C)


@over("power", range(0, 21, 2))
def test_quadrature_is_exact_for_polynomials(power: int) -> None:
    g, w = gauss_hermite()
    assert float((w * g**power).sum()) == pytest.approx(math.prod(range(1, power, 2)), rel=1e-10)


@over("n, variance", [(2, 1.0), (8, 0.1), (8, 3.0), (64, 1.0), (64, 5.0), (300, 2.0)])
def test_participation_is_the_expectation(n: int, variance: float) -> None:
    scores = torch.randn(40_000, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * variance**0.5
    ratios = scores.softmax(-1).square().sum(-1)
    assert abs(participation(n, variance) - float(ratios.mean())) < 4 * float(ratios.std()) / 200


def test_participation_between_uniform_and_one_token() -> None:
    assert participation(32, 0.0) == pytest.approx(1 / 32, rel=1e-9)
    assert participation(1, 2.0) == pytest.approx(1.0)
    assert participation(1000, 0.01) == pytest.approx(math.exp(0.01) / 1000, rel=1e-3)
    rows = participation(torch.arange(1.0, 9.0), torch.full((3, 8), 0.7))
    assert rows.shape == (3, 8) and bool((rows[:, 1:] < rows[:, :-1]).all())
    with pytest.raises(UsageError, match="participation: variance must lie in"):
        participation(8, -1.0)


@over("n, variance", [(2, 0.5), (4, 5.0), (16, 2.0), (64, 5.0), (64, 16.0), (256, 10.0), (16, 40.0), (128, 100.0)])
def test_two_queries_look_at_the_same_keys_as_often_as_they_are_alike(n: int, variance: float) -> None:
    """4,000 to 60,000 draws; within .08, where (e^{vc} - 1) / (e^v - 1) was off by up to .6 for sharp scores."""
    draws = max(4000, 120_000 // n)
    a, b = torch.randn(2, draws, n, dtype=torch.float64)
    P = (variance**0.5 * a).softmax(-1)
    Y = float(P.square().sum(-1).mean())
    by_table = participation_by_table(torch.tensor(float(n)), torch.tensor(variance))
    assert abs(float(by_table) - Y) < 0.03
    for c in (0.1, 0.3, 0.6, 0.9):
        Q = (variance**0.5 * (c * a + (1 - c * c) ** 0.5 * b)).softmax(-1)
        true = (float((P * Q).sum(-1).mean()) - 1 / n) / (Y - 1 / n)
        assert abs(float(together(n * by_table, torch.tensor(c))) - true) < 0.08, c


def test_participation_refuses_what_its_integral_cannot_do() -> None:
    with pytest.raises(UsageError, match="variance must be at most 16"):
        participation(8, 30.0)


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_how_many_entries_are_in_memory_together_does_not_matter(shape, monkeypatch):
    sigma, mean = torch.rand(2, *shape, dtype=torch.float64)
    whole = hermite_coefficients(torch.tanh, sigma, mean)
    assert whole.shape == (*shape, kernels.DEGREE + 1)
    monkeypatch.setattr(kernels, "TOGETHER", 4)  # fewer than there are
    torch.testing.assert_close(hermite_coefficients(torch.tanh, sigma, mean), whole, rtol=1e-12, atol=1e-14)
