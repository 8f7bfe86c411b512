"""A claim is a number held against an interval."""

import json
import math

import torch

from depthscope.experiments import Claim
from depthscope.experiments.claim import stated
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


def test_stated_makes_one_claim_of_each_row() -> None:
    claims = stated(7, ("a", torch.tensor(0.5), 0.0, 1.0), ("b", 3.0, 0.0, 1.0), expected=False)
    assert [(c.says, c.value, c.holds, c.trials, c.expected) for c in claims] == [
        ("a", 0.5, True, 7, False),
        ("b", 3.0, False, 7, False),
    ]


def test_a_claim_of_no_number_is_valid_json() -> None:
    assert json.loads(json.dumps(Claim("x", math.nan, 0, 1).to_dict(), allow_nan=False))["value"] == "nan"
