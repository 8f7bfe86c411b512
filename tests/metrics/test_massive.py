"""Massive tokens, and the tokens without them: the definitions written literally."""

import math

import pytest
import torch
from torch import Tensor

from depthscope import metrics
from loops import over

X = torch.randn(3, 24, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5


def with_massive(positions: list[int], times: float) -> Tensor:
    x = X.clone()
    x[:, positions] *= times
    return x


def massive(x: Tensor) -> list[int]:
    """Of one sequence (n, d), by the words of the definition."""
    norms = [math.sqrt(sum(v * v for v in row)) for row in x.tolist()]
    median = sorted(norms)[(len(norms) - 1) // 2]
    large = [i for i, norm in enumerate(norms) if norm > 5 * median]
    return large if 4 * len(large) <= len(norms) else []


@over("positions", [[], [0], [23], [4, 9, 10], [*range(6)], [*range(7)]])
@over("times", [2.0, 30.0, 1e5])
def test_the_rest_is_what_is_left_without_the_massive(positions: list[int], times: float) -> None:
    x = with_massive(positions, times)
    for i, sequence in enumerate(x):
        found = massive(sequence)
        rest = sequence[[t for t in range(24) if t not in found]]
        assert float(metrics.massive_share(x)[i]) == pytest.approx(len(found) / 24)
        assert float(metrics.t_div_rest(x)[i]) == pytest.approx(float(metrics.t_div(rest)), rel=1e-12)
        assert float(metrics.t_sim_rest(x)[i]) == pytest.approx(float(metrics.t_sim(rest)), rel=1e-12)
    if times > 10:
        assert massive(x[0]) == (positions if len(positions) <= 6 else [])


def test_each_sequence_has_its_own_median_and_padding_counts_nowhere() -> None:
    x = with_massive([3], 100.0) * torch.tensor([1.0, 50.0, 0.01])[:, None, None]
    x[:, 20:] = 1e6
    mask = torch.arange(24).expand(3, 24) < 20
    assert metrics.massive_share(x, mask=mask).tolist() == pytest.approx([1 / 20] * 3)
    assert metrics.t_div_rest(x, mask=mask).tolist() == pytest.approx(
        metrics.t_div(X[:, [t for t in range(20) if t != 3]]).tolist()
    )


def test_without_massive_tokens_the_rest_is_all_to_the_last_bit() -> None:
    assert torch.equal(metrics.t_div_rest(X), metrics.t_div(X))
    assert torch.equal(metrics.t_sim_rest(X), metrics.t_sim(X))


@over("times", [1e3, 1e6])
def test_digits_are_kept_beside_a_massive_token(times: float) -> None:
    base = torch.randn(1, 1, 10, dtype=torch.float64)
    x = base + 1e-7 * X
    expected = float(metrics.t_div(x[:1, 1:]))
    x[:, 0] *= times
    assert float(metrics.t_div_rest(x)[0]) == pytest.approx(expected, rel=1e-6)
    assert float(metrics.t_div(x)[0]) > 0.9


def test_a_token_of_nothing_but_zeros_and_many_zeros() -> None:
    x = torch.zeros(1, 12, 4)
    x[0, :2] = 1.0
    assert float(metrics.massive_share(x)) == 0  # the median is zero: nobody is measured by it
