"""What is split into a fast and a long case loses no value, and shows every value once in the fast one."""

import itertools

import pytest

from loops import at_pace, crossed, narrowed, over


def nothing(a: int, b: str, c: float) -> None:
    pass


def rows_of(decorate) -> dict[str, list[tuple]]:
    return {pace: [tuple(row.values()) for row in rows] for pace, rows in decorate(nothing).over[1].items()}


def test_crossed_rows_are_all_pairs_and_few_of_them_show_every_value() -> None:
    A, B, C = [1, 2, 3, 4, 5], ["x", "y"], [0.5, 1.5, 2.5]
    found = rows_of(crossed("a, b, c", A, B, C))
    assert sorted(found["fast"] + found["long"]) == sorted(itertools.product(A, B, C))
    assert len(found["fast"]) == 5
    assert [set(column) for column in zip(*found["fast"], strict=True)] == [set(A), set(B), set(C)]


def test_every_third_value_is_fast_and_more_are_long() -> None:
    found = rows_of(over("a", range(7), long=[9], every=3))
    assert found == {"fast": [(0,), (3,), (6,)], "long": [(1,), (2,), (4,), (5,), (9,)]}
    assert at_pace("fast", range(7), 3) == [0, 3, 6] and at_pace("long", range(7), 3) == [1, 2, 4, 5]


def test_a_row_of_stacked_ones_is_long_where_any_part_is() -> None:
    stacked = over("b", ["x"], long=["y"])(over("a", [1], long=[2])(nothing)).over[1]
    assert stacked["fast"] == [{"b": "x", "a": 1}]
    assert sorted((row["a"], row["b"]) for row in stacked["long"]) == [(1, "y"), (2, "x"), (2, "y")]


def test_only_one_value_is_left_and_a_test_without_it_is_left_out() -> None:
    test = over("a", [1, 2])(over("b", ["x", "y"], long=["z"])(nothing))
    assert narrowed(test, "fast", "y") and test.over[1]["fast"] == [{"a": 1, "b": "y"}, {"a": 2, "b": "y"}]
    assert not narrowed(test, "fast", "x"), "what was left out stays out"
    assert narrowed(test, "long", "z") and not narrowed(nothing, "fast", "y")


@over("a", [1], long=[2, 3])
def test_the_long_case_is_marked(a: int, request: pytest.FixtureRequest) -> None:
    assert (request.node.get_closest_marker("long") is not None) == (a > 1)
