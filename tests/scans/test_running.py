"""Means that grow batch by batch: what numpy finds in all batches at once."""

import numpy as np
import pytest
import torch

from depthscope.scans.running import each_with_spread, of_batch, with_spread

BATCHES = [torch.randn(3, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) + 5 for n in (4, 7, 2, 9)]


def test_mean_and_spread_are_those_of_all_sequences() -> None:
    total = with_spread(BATCHES[0])
    for batch in BATCHES[1:]:
        total = total + with_spread(batch)
    everything = np.concatenate([b.numpy() for b in BATCHES], axis=-1)
    np.testing.assert_allclose(total.mean, everything.mean(-1), rtol=1e-14)
    np.testing.assert_allclose(total.spread, everything.std(-1), rtol=1e-13)


def test_parts_join_in_any_grouping() -> None:
    a, b, c, d = (with_spread(batch) for batch in BATCHES)
    one, other = ((a + b) + c) + d, (a + c) + (d + b)
    for name in ("mean", "spread", "error"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-12, atol=0)
    assert one.batches == other.batches == 4


def test_the_error_of_equal_batches_is_that_of_a_mean() -> None:
    batches = torch.randn(6, 2, 5, dtype=torch.float64) * 1e-9 + 1.0  # far from zero: nothing may cancel
    total = of_batch(batches[0])
    for batch in batches[1:]:
        total = total + of_batch(batch)
    means = batches.mean(-1).numpy()
    np.testing.assert_allclose(total.error, means.std(0, ddof=1) / np.sqrt(6), rtol=1e-6)


def test_the_error_of_unequal_batches_is_its_formula() -> None:
    total = of_batch(BATCHES[0])
    for batch in BATCHES[1:]:
        total = total + of_batch(batch)
    w = np.array([b.shape[-1] for b in BATCHES])
    m = np.stack([b.mean(-1).numpy() for b in BATCHES])
    mean = (w[:, None] * m).sum(0) / w.sum()
    expected = np.sqrt(4 / 3 * (w[:, None] ** 2 * (m - mean) ** 2).sum(0)) / w.sum()
    np.testing.assert_allclose(total.error, expected, rtol=1e-12)


def test_the_error_covers_the_truth_as_often_as_it_says() -> None:
    draws = torch.randn(2000, 20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    total = of_batch(draws[:, 0])
    for turn in range(1, 20):
        total = total + of_batch(draws[:, turn])
    inside = (total.mean.abs() < 2.093 * total.error).double().mean()  # t of 19 degrees of freedom, 95 %
    assert inside.item() == pytest.approx(0.95, abs=0.015)


def test_one_batch_has_no_error_and_a_nan_stays_one() -> None:
    assert of_batch(BATCHES[0]).error.isnan().all()
    broken = BATCHES[1].clone()
    broken[0, 0] = torch.nan
    assert (of_batch(BATCHES[0]) + of_batch(broken)).mean.isnan().tolist() == [True, False, False]


def test_several_quantities_at_once_are_those_of_each() -> None:
    found = each_with_spread(torch.stack([BATCHES[0], 2 * BATCHES[0]]))
    for one, values in zip(found, (BATCHES[0], 2 * BATCHES[0]), strict=True):
        torch.testing.assert_close(one.mean, values.mean(-1), rtol=1e-14, atol=0)
        torch.testing.assert_close(one.spread, values.std(-1, correction=0), rtol=1e-13, atol=0)
