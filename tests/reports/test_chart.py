"""Charts made of characters: heights, ends and broken values."""

import math

from depthscope.reports.chart import bars, sampled


def test_sampled_keeps_the_ends() -> None:
    assert sampled(3, 10) == [0, 1, 2]
    assert sampled(101, 5) == [0, 25, 50, 75, 100]


def test_bars_are_as_high_as_their_values() -> None:
    lines = bars([0.0, 0.5, 1.0], height=2)
    assert lines[0] == "1.0 ┤    ██"
    assert lines[1] == "0.0 ┤  ████"
    assert lines[-1].split() == ["0", "2"]


def test_a_value_that_is_not_a_number_is_marked() -> None:
    assert bars([math.nan], height=2)[1].endswith("xx")
