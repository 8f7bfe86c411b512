"""The examples in the docstrings of public names give what they show, and every verb, metric and remedy has one."""

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import depthscope as ds

EVERY = ("metrics", "remedies")  # packages in which every name has an example
NAMELESS = {"compare", "report", "load"}  # they write files or train: the how-to pages run them


def public(home: Any) -> Iterator[tuple[str, Any]]:
    for name in getattr(home, "__all__", None) or dir(home):
        thing = getattr(home, name)
        if not name.startswith("_") and callable(thing) and not inspect.ismodule(thing):
            yield name, thing


NAMED = [
    (f"{p}.{name}", thing)
    for p in ("metrics", "theory", "models", "remedies")
    for name, thing in public(getattr(ds, p))
]
NAMED += [(name, thing) for name, thing in public(ds)]
WITH = [(name, thing) for name, thing in NAMED if ">>>" in (thing.__doc__ or "")]


@pytest.mark.parametrize("name, thing", WITH, ids=[name for name, _ in WITH])
@pytest.mark.filterwarnings("ignore")
def test_the_example_is_right(name: str, thing: Any) -> None:
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing), {"torch": torch, "ds": ds}, name, None, None)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert done.attempted and not done.failed, "".join(told)


def test_no_example_is_missing() -> None:
    has = {name for name, _ in WITH}
    asked = [name for name, _ in NAMED if name.partition(".")[0] in EVERY]
    asked += [name for name, thing in public(ds) if inspect.isfunction(thing) and name not in NAMELESS]
    assert [name for name in asked if name not in has] == []
