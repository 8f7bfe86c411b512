"""The judge itself: what is not so is found, and a refusal is not taken for an error."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from tools.coverage import checks, truth
from tools.coverage.case import Case, Sample, Stream
from tools.coverage.cases.written_lists import Loop
from tools.coverage.written import tapped_in, tokens

import depthscope as ds
from depthscope.errors import UsageError


def sample() -> Sample:
    torch.manual_seed(0)
    model = Loop("module list", causal=True).eval()
    x = tokens()
    changed = torch.cat([x[:, :-1], x[:, -1:] + 1], 1)
    return Sample(model, x, {"main": Stream(tapped_in(model), True, changed=changed)})


CASE = Case("a case", "tests", sample)


def replaced(monkeypatch: pytest.MonkeyPatch, verb: str, act: Any) -> checks.Finding:
    """What is found when a verb acts otherwise."""
    names = {name: getattr(ds, name) for name in ("scan", "fix_", "forecast", "remedies")}
    monkeypatch.setattr(checks, "ds", SimpleNamespace(**names | {verb: act}))
    return checks.check(CASE, (verb.rstrip("_"),))[verb.rstrip("_")]


def test_similarity_by_its_definition() -> None:
    same, apart = np.ones((4, 3)), np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert truth.similarity(same) == pytest.approx(1) and truth.similarity(apart) == pytest.approx(0)


def test_spectra_by_their_definition() -> None:
    P = np.array([[1.0, 0.0], [0.25, 0.75]])
    assert truth.lambda_2(P) == pytest.approx(0.75)
    assert truth.lambda_2(np.full((3, 3), 1 / 3)) == pytest.approx(0)
    assert truth.delta(np.eye(3)) == pytest.approx(1)


def test_an_identity_as_a_tap_changes_nothing() -> None:
    made = sample()
    before = made.output()
    with made.streams["main"].tapped(lambda index, x: x):
        assert torch.equal(made.output(), before)
    with made.streams["main"].tapped(lambda index, x: x * 0 if index == 3 else x):
        assert not torch.allclose(made.output(), before)
    assert torch.equal(made.output(), before)


def test_a_number_that_is_off_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(*args: Any, **more: Any) -> Any:
        found = ds.scan(*args, **more)
        found.states["t_sim"] += 1e-5
        return found

    assert replaced(monkeypatch, "scan", scan).verdict == "wrong"
    assert replaced(monkeypatch, "scan", ds.scan).verdict == "right"


def test_a_refusal_and_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> Any:
        raise UsageError("no")

    def crash(*args: Any, **more: Any) -> Any:
        raise IndexError("0")

    assert replaced(monkeypatch, "scan", refuse).verdict == "refused"
    assert replaced(monkeypatch, "forecast", crash).verdict == "crash"


def test_a_remedy_at_another_place_or_with_a_leak_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(model: Any, remedy: Any, at: str) -> Any:
        return ds.fix_(model, remedy, at="sa_out")

    def leaking(model: Any, remedy: Any, at: str) -> Any:
        return ds.fix_(model, remedy, at=at, causal="leak")

    assert replaced(monkeypatch, "fix_", elsewhere).verdict == "wrong"
    assert replaced(monkeypatch, "fix_", leaking).verdict == "wrong"
    assert replaced(monkeypatch, "fix_", ds.fix_).verdict == "right"
