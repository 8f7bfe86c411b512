"""The paired tests against scipy, and at the edges where a formula would divide by zero."""

import math
import sys

import mpmath
import numpy as np
import pytest
from scipy import stats

from depthscope.errors import MissingExtraError
from depthscope.training.significance import chance_gap, holm, paired, sign_flip_p, student_p, verdict
from loops import over


@over("degrees", [1, 2, 3, 4, 5, 9, 20, 99])
@over("t", [0.0, 0.3, 1.0, 2.5, 6.0, 30.0, 1e3, 1e6])
def test_student_is_the_incomplete_beta_function(t: float, degrees: int) -> None:
    """I_x(degrees / 2, 1 / 2) with x = degrees / (degrees + t^2), in 40 digits."""
    with mpmath.workdps(40):
        v = mpmath.mpf(degrees)
        expected = mpmath.betainc(v / 2, 0.5, 0, v / (v + mpmath.mpf(t) ** 2), regularized=True)
    assert student_p(t, degrees) == pytest.approx(float(expected), rel=1e-12, abs=1e-300)
    assert student_p(-t, degrees) == student_p(t, degrees)


@over("t, degrees, p", [(0.7, 2, 0.5563930246328658), (4.3, 2, 0.05005715411709156), (2.5, 4, 0.06676654481198815)])
def test_p_values_are_those_of_earlier_versions(t: float, degrees: int, p: float) -> None:
    assert student_p(t, degrees) == pytest.approx(p, abs=1e-12)


def test_without_scipy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(MissingExtraError, match=r"^p-values: need scipy\. pip install '"):
        student_p(1.0, 2)


@over("count", [3, 4, 7])
def test_both_tests_are_scipys(count: int) -> None:
    draw = np.random.default_rng(count)
    a, b = draw.normal(0.3, 1, count), draw.normal(0, 1, count)
    result = paired(a.tolist(), b.tolist())
    assert result.p_t == pytest.approx(stats.ttest_rel(a, b).pvalue, rel=1e-9)
    flips = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", alternative="two-sided"
    )
    assert result.p_flip == pytest.approx(flips.pvalue)
    assert (result.mean, result.spread) == (pytest.approx((a - b).mean()), pytest.approx((a - b).std(ddof=1)))


def test_equal_differences_do_not_divide_by_zero() -> None:
    same = paired([0.5, 0.6, 0.7], [0.5, 0.6, 0.7])
    assert (same.mean, same.spread, same.p) == (0.0, 0.0, 1.0) and verdict(same.p) == "within noise (p = 1)"
    shifted = paired([0.5, 0.6, 0.7], [0.4, 0.5, 0.6])
    assert math.isnan(shifted.p_t) and shifted.p == 0.25  # three equal signs are what a coin gives one time in four
    assert paired([1.0] * 20, [0.0] * 20).p == 2.0**-19


def test_differences_closer_than_the_resolution_are_tested_as_if_they_were_that_far_apart() -> None:
    far = paired([0.975] * 3, [0.1] * 3, resolution=1 / 360)
    assert far.spread == 0.0 and far.p == pytest.approx(student_p(0.875 * 360 * math.sqrt(3), 2)) and far.p < 1e-5
    one_image = paired([101 / 360, 91 / 360, 81 / 360], [100 / 360, 90 / 360, 80 / 360], resolution=1 / 360)
    assert one_image.p == pytest.approx(student_p(math.sqrt(3), 2)) and one_image.p > 0.2
    assert paired([0.5] * 3, [0.5] * 3, resolution=1 / 360).p == 1.0
    wide = [0.5, 0.6, 0.9], [0.1, 0.4, 0.2]
    assert paired(*wide, resolution=1 / 360) == paired(*wide)


@over("wrong", [math.nan, math.inf, -math.inf])
def test_of_values_that_are_not_finite_nothing_can_be_said(wrong: float) -> None:
    result = paired([0.5, wrong, 0.7], [0.4, 0.3, 0.2], resolution=0.1)
    assert math.isnan(result.p) and math.isnan(result.p_flip) and verdict(result.p) == "nothing can be said"
    assert math.isnan(sign_flip_p([1.0, wrong, -wrong]))


@over("count", [0, 1, 2])
def test_too_few_seeds_say_nothing(count: int) -> None:
    assert verdict(paired([0.9] * count, [0.1] * count).p) == "nothing can be said"


def test_words() -> None:
    assert verdict(0.049) == "differs (p = 0.049)"
    assert verdict(0.21) == "within noise (p = 0.21)"
    assert verdict(1e-9) == "differs (p < 0.0001)"


def test_sign_flips_by_hand() -> None:
    assert sign_flip_p([1.0, 2.0, 3.0]) == 0.25
    assert sign_flip_p([1.0, -1.0]) == 1.0
    assert sign_flip_p([3.0, 2.0, -1.0]) == 0.5  # +-6 and +-4 of 6 4 2 0 and their mirrors
    assert math.isnan(sign_flip_p([1.0] * 17))


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, math.nan, 0.9])[::2] == pytest.approx([1.0, 1.0])
    assert math.isnan(holm([0.5, math.nan])[1]) and holm([]) == []


@over("count", [8, 360, 10_000])
def test_two_equal_shares_differ_by_more_than_the_gap_in_one_case_of_twenty(count: int) -> None:
    draw = np.random.default_rng(count)
    gaps = np.abs(np.diff(draw.binomial(count, 0.5, (20_000, 2)), axis=1)) / count
    assert (gaps > chance_gap(count)).mean() == pytest.approx(0.05, abs=0.03)
    assert chance_gap(count) == pytest.approx(stats.norm.isf(0.025) * math.sqrt(0.5 / count))
