"""The examples in the docstrings of public names give what they show, and every public name has one."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import depthscope as ds

PACKAGES = ("metrics", "theory", "models", "remedies", "experiments", "integrations")  # an error's example is its text
ELSEWHERE = {"compare", "Comparison", "load"}  # two train for minutes; the how-to pages run all three


def public(home: Any) -> Iterator[tuple[str, Any]]:
    for name in getattr(home, "__all__", None) or dir(home):
        thing = getattr(home, name)
        if not name.startswith("_") and callable(thing) and not inspect.ismodule(thing):
            yield name, thing


NAMED = [(f"{p}.{name}", thing) for p in PACKAGES for name, thing in public(getattr(ds, p))]
NAMED += [(name, thing) for name, thing in public(ds)]
WITH = [(name, thing) for name, thing in NAMED if ">>>" in (thing.__doc__ or "")]


@pytest.mark.parametrize("name, thing", WITH, ids=[name for name, _ in WITH])
@pytest.mark.filterwarnings("ignore")
def test_the_example_is_right(name: str, thing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing), {"torch": torch, "ds": ds}, name, None, None)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(example, out=told.append)
    assert done.attempted and not done.failed, "".join(told)


def test_no_example_is_missing() -> None:
    assert {name for name, _ in NAMED} - {name for name, _ in WITH} == ELSEWHERE
