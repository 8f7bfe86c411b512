"""One property, many values, one case: `over` runs a test for every value and names all values that fail.

Where trying all would take long, `over(..., long=...)`, `over(..., every=...)` and `crossed` try some in `make test`
and all others in `make test-long`. A test that walks over values by itself takes the argument `pace` and `at_pace`.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch


def over(names: str, values: Iterable[Any], long: Iterable[Any] = (), every: int = 1) -> Callable:
    """Run the decorated test for every value of the arguments `names` ("name" or "name, other"), as one case.

    long: more values, which a second case tries that is marked `long`; of stacked ones, all rows with such a value.
    every: of many values, only every third, say, is fast, and the others are long.
    Written and stacked like pytest.mark.parametrize: two of them run every pair of values. The random state begins
    anew for every value, so that no value depends on the ones before it. Fixtures are made once, for all values;
    those that a value leaves traces in (tmp_path, monkeypatch, capsys) are renewed.
    """
    keys = [key.strip() for key in names.split(",")]
    values = list(values)
    given = {"fast": at_pace("fast", values, every), "long": [*at_pace("long", values, every), *long]}
    new = {
        pace: [dict(zip(keys, value if len(keys) > 1 else (value,), strict=True)) for value in given[pace]]
        for pace in given
    }

    def decorate(test: Callable) -> Callable:
        body, inner = getattr(test, "over", (test, {"fast": [{}], "long": []}))
        by_pace: dict[str, list[dict]] = {"fast": [], "long": []}
        for mine, theirs in (("fast", "fast"), ("fast", "long"), ("long", "fast"), ("long", "long")):
            pace = "fast" if mine == theirs == "fast" else "long"
            by_pace[pace] += [row | other for row in new[mine] for other in inner[theirs]]

        @functools.wraps(test)
        def run(pace: str = "fast", **fixtures: Any) -> None:
            failed, skipped = [], []
            rows = by_pace[pace]
            for i, row in enumerate(rows):
                torch.manual_seed(0)
                try:
                    body(**renewed(fixtures, i), **row)
                except pytest.skip.Exception as reason:  # a package is missing that this value needs
                    skipped.append(reason)
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((row, error))
            if failed:
                pytest.fail(told(failed, len(rows)), pytrace=False)
            if skipped and len(skipped) == len(rows):
                raise skipped[0]

        assert by_pace["fast"], f"{body.__name__}: no value to try"
        parameters = inspect.signature(body).parameters
        asked = [p for p in parameters.values() if p.name not in by_pace["fast"][0]]
        if by_pace["long"]:  # conftest.py makes two cases of this argument
            asked.append(inspect.Parameter("pace", inspect.Parameter.POSITIONAL_OR_KEYWORD))
        run.__signature__ = inspect.Signature(asked)  # type: ignore[attr-defined]
        run.over = body, by_pace  # type: ignore[attr-defined]
        return run

    return decorate


def narrowed(test: Callable, pace: str, value: str) -> bool:
    """Leave a test `over` values only the rows with this word; whether any is left. Other tests have none."""
    rows = test.over[1][pace] if hasattr(test, "over") else []
    rows[:] = [row for row in rows if any(isinstance(one, str) and one == value for one in row.values())]
    return bool(rows)


def at_pace(pace: str, values: Sequence[Any], every: int) -> list[Any]:
    """Of the values, the first and every `every`-th after it at the pace "fast", the others at the pace "long"."""
    return [value for i, value in enumerate(values) if (i % every == 0) == (pace == "fast")]


def crossed(names: str, *axes: Sequence[Any]) -> Callable:
    """`over` all combinations of the values of several arguments: few that show every value once, the others long."""
    count = max(len(axis) for axis in axes)
    few = [tuple(i % len(axis) for axis in axes) for i in range(count)]
    rest = [row for row in itertools.product(*(range(len(axis)) for axis in axes)) if row not in few]
    fast, long = ([tuple(axis[i] for axis, i in zip(axes, row, strict=True)) for row in rows] for rows in (few, rest))
    return over(names, fast, long=long)


def renewed(fixtures: dict, i: int) -> dict:
    """The fixtures as the value with number i wants them: without what the value before it wrote, patched, printed."""
    if "monkeypatch" in fixtures:
        fixtures["monkeypatch"].undo()
    if "capsys" in fixtures:
        fixtures["capsys"].readouterr()
    if "tmp_path" in fixtures:
        folder = fixtures["tmp_path"] / str(i)
        folder.mkdir()
        return fixtures | {"tmp_path": folder}
    return fixtures


def told(failed: list[tuple[dict, BaseException]], tried: int) -> str:
    """Every failing row with its error in one line, then where the first one failed."""
    infos = [(row, pytest.ExceptionInfo.from_exception(error)) for row, error in failed]
    lines = [f"{len(failed)} of {tried} fail:"]
    lines += [f"  {label(row)}: {info.exconly(tryshort=True).splitlines()[0]}" for row, info in infos]
    row, first = infos[0]
    first.traceback = first.traceback[1:]  # without the line of the loop
    return "\n".join([*lines, "", f"with {label(row)}:", str(first.getrepr(style="short"))])


def label(row: dict) -> str:
    """name=value for each argument; a function or class by its name, a file by its end, a long value by its beginning."""
    return ", ".join(f"{key}={shown(value)}" for key, value in row.items())


def shown(value: Any) -> str:
    if isinstance(value, Path):
        return "/".join(value.parts[-3:])
    return getattr(value, "__name__", None) or repr(value)[:80]
