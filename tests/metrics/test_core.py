"""What is left without exceptions: literal definitions for few channels, random truth for many."""

import pytest
import torch
from torch import Tensor

from depthscope import metrics
from depthscope.metrics.ordinary import central
from loops import over


def gaussian(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def participation(x: Tensor) -> float:
    """Of one sequence (n, d), by its singular values."""
    s = torch.linalg.svdvals(x - x.mean(0)).square()
    return float(s.sum() ** 2 / s.square().sum())


def core(x: Tensor) -> float:
    """Of one sequence (n, d), d <= 8: all but ceil(n / 8) directions, those nearest to the one at their median."""
    u = x / x.norm(dim=-1, keepdim=True)
    median = u.median(0).values
    central = min(u, key=lambda one: float((one - median).square().sum()))
    near = sorted(u, key=lambda one: float((one - central).square().sum()))
    kept = torch.stack(near[: len(u) - -(-len(u) // 8)])
    return float(metrics.t_div(kept))


@over("n", [4, 7, 8, 9, 16, 33])
def test_the_core_is_seven_of_eight_directions(n: int) -> None:
    x = gaussian(5, n, 6) + 1.0
    for found, sequence in zip(metrics.t_div_core(x), x, strict=True):
        assert float(found) == pytest.approx(core(sequence), rel=1e-9)


@over("n, odd", [(32, 1), (64, 4), (128, 8), (16, 2)])
@over("d", [6, 300])
def test_a_few_others_do_not_hide_that_tokens_are_equal(n: int, odd: int, d: int) -> None:
    x = gaussian(2, 1, d).expand(2, n, d).clone()
    other = gaussian(2, odd, d)
    x[:, torch.randperm(n)[:odd]] = 2 * x[:, :1].norm(dim=-1, keepdim=True) * other / other.norm(dim=-1, keepdim=True)
    assert float(metrics.t_div(x).min()) > 0.05
    assert metrics.t_div_core(x).abs().max() < 1e-25
    assert metrics.same_share(x).tolist() == pytest.approx([1 - odd / n] * 2)


@over("t_div", [0.5, 0.03, 1e-3, 1e-8, 1e-12])
def test_without_exceptions_the_core_is_near_t_div(t_div: float) -> None:
    x = gaussian(8, 1, 256) + (t_div / (1 - t_div)) ** 0.5 * gaussian(8, 64, 256)
    assert (metrics.t_div_core(x) / metrics.t_div(x)).tolist() == pytest.approx([1.0] * 8, rel=0.35)


@over("size", [50.0, 1e4])
def test_a_shared_channel_is_left_out_and_a_channel_that_varies_is_not(size: float) -> None:
    x = gaussian(2, 32, 30)
    shared, varying = x.clone(), x.clone()
    shared[..., 5] += size
    varying[..., 5] *= size
    assert metrics.t_div_core(shared).tolist() == pytest.approx(
        metrics.t_div_core(torch.where(torch.arange(30) == 5, 0.0, x)).tolist()
    )
    assert float(metrics.t_div(shared).max()) < 0.02
    assert float(metrics.difference_rank(varying).max()) < 1.2 < 10 < float(metrics.difference_rank(shared).min())


@over("r", [1, 2, 5, 20])
def test_the_rank_is_the_participation_ratio(r: int) -> None:
    x = gaussian(6, 24, r) @ gaussian(r, 30) + 2.0
    assert metrics.difference_rank(x).tolist() == pytest.approx([participation(one) for one in x], rel=1e-9)


@over("d", [64, 768])
@over("r", [1, 2, 5, 25])
def test_the_rank_of_many_channels_is_exact_too(d: int, r: int) -> None:
    x = gaussian(4, 64, r) @ gaussian(4, r, d)
    assert metrics.difference_rank(x).tolist() == pytest.approx([participation(one) for one in x], rel=1e-9)


def test_the_size_is_the_distance_from_the_mean() -> None:
    x = gaussian(3, 20, 7) + 100.0
    expected = (x - x.mean(1, keepdim=True)).square().sum((1, 2)).div(20).sqrt()
    assert metrics.difference_size(x).tolist() == pytest.approx(expected.tolist())
    x[:, 0] *= 50
    others = x[:, 1:] - x[:, 1:].mean(1, keepdim=True)
    assert metrics.difference_size(x).tolist() == pytest.approx(others.square().sum((1, 2)).div(19).sqrt().tolist())


@over("points", [1, 2, 3, 4])
@over("d", [8, 100])
def test_tokens_in_a_few_points(points: int, d: int) -> None:
    centres = gaussian(3, points, d) + 1.0
    x = centres[:, torch.arange(32) % points] + 1e-3 * gaussian(3, 32, d)
    if points > 1:
        assert metrics.few_points(x).tolist() == [1.0] * 3
    x[:, :3] = gaussian(3, 3, d)
    assert float(metrics.few_points(x).min()) >= 29 / 32


def test_unrelated_tokens_are_in_no_point() -> None:
    assert float(metrics.few_points(gaussian(5, 32, 6)).max()) < 0.2
    assert float(metrics.few_points(gaussian(5, 32, 100)).max()) == 0.0


def test_all_but_a_few_tokens_zero() -> None:
    x = torch.zeros(1, 16, 5)
    x[0, 0] = 1.0
    assert float(metrics.t_div_core(x)) == 0.0 and not metrics.difference_rank(x).isnan().any()


@over("d", [4, 30])
def test_a_token_alone_is_no_point(d: int) -> None:
    """Corners of a simplex are all apart: with few directions, and no two tokens in one place."""
    corners = torch.eye(5, dtype=torch.float64) @ torch.linalg.qr(gaussian(d + 1, 5)).Q.mT
    assert metrics.few_points(corners).tolist() == 0.0
    pairs = torch.cat([corners, corners[:2] + 1e-3 * gaussian(2, d + 1)])
    assert float(metrics.few_points(pairs)) == pytest.approx(4 / 7)


@over("scale", [1e-9, 1e9, 1e12])
def test_the_rank_of_differences_does_not_depend_on_the_scale(scale: float) -> None:
    X = torch.randn(1, 128, 256)
    torch.testing.assert_close(metrics.difference_rank(scale * X), metrics.difference_rank(X), rtol=1e-3, atol=0)


@over("n", (2, 7, 8, 33))
def test_the_central_token_of_all_is_that_of_those_to_keep(n: int) -> None:
    seen = gaussian(5, 3, n)
    expected = (seen - seen.median(-1, keepdim=True).values).square().sum(-2).argmin(-1)
    assert torch.equal(central(seen, None), expected)
    assert torch.equal(central(seen, torch.ones(5, n, dtype=torch.bool)), expected)
