"""ds.forecast(...).trains(lr), .largest_rate and ds.advise(..., lr=): what they say, and where they say nothing."""

import math

import pytest
import torch

import depthscope as ds
from depthscope.errors import UsageError
from depthscope.forecasts import rate_limit
from depthscope.forecasts.rate_limit import RateLimit

SIZES = {"n": 16, "d": 32, "h": 4, "q": 64, "output": True}


def test_a_rate_above_the_largest_is_less_likely_than_not() -> None:
    found = ds.forecast(depth=24, **SIZES)
    assert found.trains(found.largest_rate).probability == pytest.approx(0.5)
    assert found.trains(found.largest_rate / 10).likely and not found.trains(10 * found.largest_rate).likely
    times = found.trains(found.largest_rate / 10).probability
    assert times == pytest.approx(1 / (1 + 10**-rate_limit.SLOPE))


def test_deeper_stacks_bear_less_and_too_few_steps_teach_nothing() -> None:
    rates = [ds.forecast(depth=depth, wiring="pre_norm", **SIZES).largest_rate for depth in (6, 24, 96)]
    assert rates[0] > rates[1] > rates[2]
    found = ds.forecast(depth=6, **SIZES)
    assert found.trains(1e-5).probability > 0.9
    assert found.trains(1e-5, steps=50).probability < 0.1
    assert found.trains(1e-5, steps=10**6).probability == pytest.approx(found.trains(1e-5).probability, rel=0.01)


def test_a_limit_by_hand() -> None:
    limit = RateLimit(depth=10, update=100.0, local=100.0, diversity=0.25)
    assert limit.largest_rate == pytest.approx(rate_limit.C * 0.25**rate_limit.DIVERSITY / 100)
    assert limit.smallest_rate(60) == pytest.approx(rate_limit.MOVED / 60)
    grown = RateLimit(depth=10, update=400.0, local=100.0, diversity=0.25)
    assert grown.largest_rate == pytest.approx(limit.largest_rate / 2)  # half of the growth counts
    causal = RateLimit(depth=10, update=100.0, local=100.0, diversity=0.25, causal=True)
    assert causal.largest_rate == pytest.approx(limit.largest_rate / rate_limit.CAUSAL)
    normed = RateLimit(depth=10, update=100.0, local=100.0, diversity=0.25, normed=True)
    assert normed.largest_rate == pytest.approx(limit.largest_rate / rate_limit.NORMED)
    assert normed.smallest_rate(60) == limit.smallest_rate(60)
    assert causal.smallest_rate(60) == pytest.approx(limit.smallest_rate(60) * rate_limit.CAUSAL)
    assert RateLimit(10, 100.0, 100.0, 0.0).largest_rate > 0  # tokens that are one still have a limit
    assert 0 <= limit.probability(1e300) < 1e-12


def test_a_causal_design_has_a_causal_limit() -> None:
    open_, causal = (ds.forecast(depth=8, causal=causal, **SIZES) for causal in (False, True))
    assert causal.rate_limit is not None and causal.rate_limit.causal
    assert open_.rate_limit is not None and not open_.rate_limit.causal
    assert causal.largest_rate < open_.largest_rate
    plain = ds.forecast(depth=8, wiring="pre_norm", **SIZES)
    assert open_.rate_limit.normed and plain.rate_limit is not None and not plain.rate_limit.normed


def test_a_model_as_it_was_drawn_has_the_limit_of_its_sizes() -> None:
    torch.manual_seed(0)
    model = ds.models.classic(8, 32, 4, q=64, output=True)
    found, sizes = ds.forecast(model, torch.randn(4, 16, 32)), ds.forecast(depth=8, **SIZES)
    assert math.isclose(found.largest_rate, sizes.largest_rate, rel_tol=0.15)
    alike = ds.forecast(model, torch.randn(4, 1, 32) + 0.5 * torch.randn(4, 16, 32))
    same = ds.forecast(depth=8, t_sim=float(alike.t_sim[0]), **SIZES)
    assert alike.rate_limit.update == pytest.approx(same.rate_limit.update, rel=1e-6)  # type: ignore[union-attr]
    with ds.fix_(model, ds.remedies.DeEscalate(0.5)), pytest.raises(UsageError, match="Give sizes"):
        ds.forecast(model, torch.randn(4, 16, 32)).trains(1e-3)
    with torch.no_grad():
        model.blocks[2].attention.W.weight.mul_(2)
    with pytest.raises(UsageError, match="largest_rate: is known for sizes"):
        ds.forecast(model, torch.randn(4, 16, 32)).largest_rate  # noqa: B018


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(UsageError, match="trains: is known for sizes and for reference models"):
        ds.forecast(gain=1.1, depth=4).trains(1e-3)
    with pytest.raises(UsageError, match="trains: is known for sizes"):
        ds.advise(ds.scan(ds.models.classic(3, 16, 2), torch.randn(2, 8, 16)), lr=1e-3)
    found = ds.forecast(depth=4, **SIZES)
    for wrong in (0, -1e-3, math.inf, math.nan, 10**400, "fast", True):
        with pytest.raises(UsageError, match="lr must be a positive learning rate"):
            found.trains(wrong)  # type: ignore[arg-type]
    for steps in (0, 10**400, 2.0):
        with pytest.raises(UsageError, match="steps must be a whole number"):
            found.trains(1e-3, steps=steps)  # type: ignore[arg-type]
    assert "more or fewer than those" in ds.forecast(depth=300, **SIZES).trains(1e-3).reliability
    assert "more or fewer than those" not in ds.forecast(depth=30, **SIZES).trains(1e-3).reliability


def test_advice_for_a_rate_is_likely_to_train_at_it() -> None:
    advice = ds.advise(depth=12, lr=3e-3, weights="xavier", **SIZES)
    assert advice.needed and advice.holds and advice.lr == 3e-3
    assert advice.choice.forecast.trains(3e-3).probability >= 0.8
    assert "probability of training" in advice.text
    assert ds.advise(depth=6, lr=1e-5, **SIZES).choice.forecast.trains(1e-5).probability >= 0.8
    assert ds.Advice.from_dict(advice.to_dict()).lr == 3e-3
