"""States in float32 are measured without a float64 copy: the definitions, written literally in float64, are the truth."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from depthscope import metrics
from depthscope.metrics import sums
from depthscope.metrics.chunks import Chunk, chunks
from loops import over

SHAPES = [(3, 64, 256), (2, 127, 128), (2, 16, 768), (5, 48, 100), (40, 2, 2048)]


def plain(x: Tensor) -> Tensor:
    return x


def offset(x: Tensor) -> Tensor:
    return x + 1e4 * torch.randn(x.shape[-1])


def nearly_equal(x: Tensor) -> Tensor:
    return torch.randn(len(x), 1, x.shape[-1]) + 1e-6 * x


def a_massive_first_token(x: Tensor) -> Tensor:
    return torch.cat([1000 * x[:, :1], x[:, 1:]], -2)


def alike_but_for_the_first(x: Tensor) -> Tensor:
    return torch.cat([x[:, :1], torch.randn(x.shape[-1]) + 1e-2 * x[:, 1:]], -2)


def some_alike_and_some_not(x: Tensor) -> Tensor:
    return torch.cat([nearly_equal(x[:1]), x[1:]])


CASES = [plain, offset, nearly_equal, a_massive_first_token, alike_but_for_the_first, some_alike_and_some_not]


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-2, keepdim=True)


def energy(x: Tensor) -> Tensor:
    return x.square().sum((-2, -1))


def composite(x: Tensor) -> Tensor:
    return (x.abs().sum(-2).amax(-1) * x.abs().sum(-1).amax(-1)).sqrt()


def cosine(x: Tensor) -> Tensor:
    u, n = x / x.norm(dim=-1, keepdim=True), x.shape[-2]
    return ((u @ u.mT).sum((-2, -1)) - n) / (n * (n - 1))


def along_first(x: Tensor) -> Tensor:
    first, later = x[:, :1], x[:, 1:]
    return ((later @ first.mT).square().sum((-2, -1)) / (energy(first) * energy(later))).clamp_max(1)


def participation(x: Tensor) -> Tensor:
    s = torch.linalg.svdvals(centred(x)).square()
    return s.sum(-1).square() / s.square().sum(-1)


LITERALLY: dict[str, Callable[[Tensor], Tensor]] = {
    "t_sim": lambda x: 1 - energy(centred(x)) / energy(x),
    "t_div": lambda x: energy(centred(x)) / energy(x),
    "token_norm": lambda x: x.norm(dim=-1).mean(-1),
    "composite_norm": composite,
    "relative_residual": lambda x: composite(centred(x)) / composite(x),
    "hfc_lfc": lambda x: (energy(centred(x)) / energy(x.mean(-2, keepdim=True)) / x.shape[-2]).sqrt(),
}


def apart(found: Tensor, truth: Tensor) -> float:
    return float((found / truth - 1).abs().max())


@over("shape", SHAPES)
@over("case", CASES)
@over("name", LITERALLY)
def test_one_part_in_ten_million(shape: tuple[int, int, int], case: Callable, name: str) -> None:
    x = case(torch.randn(shape))
    assert all(chunk.x.dtype == torch.float32 for chunk in chunks(x, None, where="test"))
    most = 3e-7 if name in ("composite_norm", "relative_residual") else 1e-7  # of a single row and a single column
    assert apart(getattr(metrics, name)(x), LITERALLY[name](x.double())) < most


@over("n", [97, 128])  # 97 is no multiple of a short sum
def test_a_sum_of_short_sums_loses_no_unit(n: int) -> None:
    large = 2**24  # float32 has no number between it and large + 2
    x = torch.zeros(1, n, 512)
    x[0, ::32, 0] = 1
    x[0, 0, 0] = large
    assert int(sums.token_sum(x)[0, 0]) == int(sums.weighted_sum(x, torch.ones(1, n))[0, 0]) == large + 3
    x[0, 0, ::64] = 1
    x[0, 0, 0] = large**0.5
    torch.testing.assert_close(float(sums.norms(x)[0, 0]), (large + 7) ** 0.5, rtol=1e-15, atol=0)
    assert int(sums._square(x[..., :1])) == large + 3


@over("shape", SHAPES)
@over("case", CASES)
def test_angles_and_directions(shape: tuple[int, int, int], case: Callable) -> None:
    x = case(torch.randn(shape))
    wide = x.double()
    torch.testing.assert_close(metrics.t_cos(x), cosine(wide), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(metrics.first_token_similarity(x), along_first(wide), rtol=1e-6, atol=1e-8)
    if case not in (a_massive_first_token, offset):  # of which ordinary tokens are some, in some channels
        assert apart(metrics.difference_rank(x), participation(wide)) < 1e-6


@over("shape", [(2, 257, 300), (1, 600, 128), (2, 300, 257)])
@over("size", [1e-15, 1.0, 1e9])
def test_the_rank_of_many_differences(shape: tuple[int, int, int], size: float) -> None:
    x = size * torch.randn(shape)  # inner products come in four strips, the last of them shorter
    assert apart(metrics.difference_rank(x), participation(x.double() / size)) < 1e-7


@over("case", CASES)
@over("name", ["t_div_core", "same_share", "few_points", "difference_rank", "difference_size", "t_div_rest"])
def test_float32_and_float64_say_the_same_of_ordinary_tokens(case: Callable, name: str) -> None:
    x = case(torch.randn(3, 64, 256))
    function = getattr(metrics, name)
    torch.testing.assert_close(function(x), function(x.double()), rtol=1e-6, atol=1e-14)


@over("shape", SHAPES)
def test_padding_counts_nowhere(shape: tuple[int, int, int]) -> None:
    b, n, d = shape
    x = torch.randn(b, 2 * n, d) + 0.5
    x[:, n:] = torch.nan
    mask = torch.arange(2 * n) < n
    for name, literally in LITERALLY.items():
        found = getattr(metrics, name)(x, mask=mask.expand(b, -1))
        assert apart(found, literally(x[:, :n].double())) < 3e-7, name


@over("shape", SHAPES)
@over("value", [0.1, 1 / 3, 1e-7, 3e8])
def test_equal_tokens_leave_exactly_nothing(shape: tuple[int, int, int], value: float) -> None:
    for token in (torch.full(shape[-1:], value), value * torch.randn(shape[-1])):
        x = token.expand(shape).contiguous()
        assert metrics.t_div(x).tolist() == metrics.relative_residual(x).tolist() == [0.0] * shape[0]
        assert metrics.t_div_core(x).tolist() == [0.0] * shape[0] and metrics.same_share(x).tolist() == [1.0] * shape[0]
        assert metrics.t_sim(x).tolist() == [1.0] * shape[0]


@over("size", [1e-30, 1e-18, 1e15, 1e30])
def test_squares_that_float32_cannot_hold(size: float) -> None:
    x = size * (torch.randn(2, 64, 64) + 1)
    assert apart(metrics.t_div(x), LITERALLY["t_div"](x.double())) < 1e-7
    assert apart(metrics.token_norm(x), LITERALLY["token_norm"](x.double())) < 1e-7


def test_differences_whose_squares_float32_cannot_hold() -> None:
    x = torch.ones(1, 64, 64)
    x[:, :, 0] = 1e-22 * torch.rand(64)
    assert apart(metrics.t_div(x), LITERALLY["t_div"](x.double())) < 1e-7


@over("bad", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_its_sample(bad: float) -> None:
    x = torch.randn(3, 64, 64)
    truth = metrics.t_div(x)
    x[1, 5, 7] = bad
    found = metrics.t_div(x)
    assert found[1].isnan() and found[[0, 2]].tolist() == pytest.approx(truth[[0, 2]].tolist(), rel=1e-7)


@over("case", CASES)
def test_float64_keeps_twelve_digits(case: Callable) -> None:
    x = case(torch.randn(3, 64, 256)).double()
    for name, literally in LITERALLY.items():
        loose = 1e-10 if case is offset or case is nearly_equal else 1e-12  # what the definition itself loses
        assert apart(getattr(metrics, name)(x), literally(x)) < loose, name


def test_small_states_are_measured_in_float64() -> None:
    (chunk,) = chunks(torch.randn(5, 8, 16), None, where="test")
    assert isinstance(chunk, Chunk) and chunk.x.dtype == torch.float64
