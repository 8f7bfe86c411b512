"""A claim is a number held against an interval."""

import json
import math
from types import SimpleNamespace

import torch

from depthscope.experiments import Claim
from depthscope.experiments.claim import least, majority, of_another, reported, stated
from depthscope.reports.reproductions import summary, table
from loops import over


@over("value, holds", [(1.0, True), (2.0, True), (1.5, True), (0.999, False), (2.001, False), (math.nan, False)])
def test_it_holds_inside_the_interval_ends_included(value: float, holds: bool) -> None:
    assert Claim("x", value, 1.0, 2.0).holds is holds


@over(
    "low, high, words",
    [(0.0, 0.0, "0"), (-math.inf, 2.0, "<= 2"), (0.5, math.inf, ">= 0.5"), (0.97, 1.03, "0.97 to 1.03")],
)
def test_the_interval_in_words(low: float, high: float, words: str) -> None:
    assert Claim("x", 1.0, low, high).wanted == words


@over(
    "value, expected, status",
    [(0.5, True, "holds"), (2.0, True, "FAILS"), (2.0, False, "differs (known)"), (0.5, False, "holds (!)")],
)
def test_the_status_says_whether_it_was_expected(value: float, expected: bool, status: str) -> None:
    assert Claim("x", value, 0.0, 1.0, expected=expected).status == status


@over("null, can_fail", [(0.0, False), (0.5, False), (1.0, False), (math.nan, False), (1.001, True), (-1.0, True)])
def test_a_claim_can_fail_where_nothing_would_not_do(null: float, can_fail: bool) -> None:
    assert Claim("x", 0.5, 0.0, 1.0, null=null).can_fail is can_fail


def test_a_number_without_an_interval_is_reported_and_fails_no_run() -> None:
    (number,) = reported(3, ("x", torch.tensor(math.nan)))
    assert number.status == "reported" and number.wanted == "" and number.trials == 3
    assert number.reported and not number.counted
    assert Claim("x", 2.0, 0.0, 1.0).counted and not Claim("x", 2.0, 0.0, 1.0, expected=False).counted
    assert not Claim("x", 2.0, 0.0).reported


def test_the_summary_counts_what_is_counted() -> None:
    claims = [*stated(1, ("a", 0.5, 0.0, 1.0, 2.0)), *stated(1, ("b", 2.0, 0.0, 1.0), expected=False)]
    numbers = reported(1, ("c", 3.0), ("d", 4.0))
    of = SimpleNamespace(name="x", claims=[*claims, *numbers], seconds=1.0)
    assert summary([of]) == (
        "1 of 1 claims hold; of 1 that are known to differ, 1 do; reported and not counted: 2. 1 s."
    )
    rows = table([of]).cells
    assert rows[1] == ["  a", "0 to 1", "2", "0.5", ("holds", "green"), "1"]
    assert rows[3] == ["  c", "", "", "3", ("reported", "dim"), "1"]


def test_what_nothing_would_give() -> None:
    assert of_another(torch.tensor([1.0, 2.0, 3.0])).tolist() == [3.0, 1.0, 2.0]
    assert float(majority(torch.tensor([True, False, False, False]))) == 0.75
    assert least(torch.tensor([3.0, 1.0])) == 1.0 and math.isnan(least(torch.zeros(0)))


def test_stated_makes_one_claim_of_each_row() -> None:
    claims = stated(7, ("a", torch.tensor(0.5), 0.0, 1.0), ("b", 3.0, 0.0, 1.0, torch.tensor(2.0)), expected=False)
    assert math.isnan(claims[0].null) and claims[1].null == 2.0
    assert [(c.says, c.value, c.holds, c.trials, c.expected) for c in claims] == [
        ("a", 0.5, True, 7, False),
        ("b", 3.0, False, 7, False),
    ]


def test_a_claim_of_no_number_is_valid_json() -> None:
    assert json.loads(json.dumps(Claim("x", math.nan, 0, 1).to_dict(), allow_nan=False))["value"] == "nan"
