"""A gate: which scans pass, against a truth that is written out, and what is said where they do not."""

import json
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import depthscope as ds
from depthscope.errors import DepthscopeError, UnknownNameError, UsageError
from depthscope.gates.gate import diversities
from depthscope.gates.junit import junit
from loops import over
from scans.played import alike, common_and_apart, gaussian, played, towards


def of(*t_div: float) -> ds.Scan:
    """A scan whose states have these diversities."""
    base, apart = common_and_apart(2, 32, 32)
    return played([base + math.sqrt(t / (1 - t)) * apart for t in t_div])


def failed(gate: ds.Gate) -> list[str]:
    return [check.title for check in gate.failed]


HEALTHY = [0.5, 0.45, 0.41, 0.38]
LOST = [0.5, 0.1, 1e-3, 1e-5]


def test_without_thresholds_the_verdict_decides() -> None:
    assert ds.gate(of(*HEALTHY)).passed and ds.gate(of(*HEALTHY))
    gate = ds.gate(of(*LOST))
    assert failed(gate) == ["verdict"] and not gate and "'collapsed', and a fix is needed" in gate.failed[0].says


@over("bad, passes", [(1, False), (0, True)])
def test_a_verdict_of_some_sequences_counts(bad: int, passes: bool) -> None:
    """Escalating may need a fix or none: the verdict says which."""
    end = gaussian(4, 24, 40)
    end[:bad] = alike(bad, 24, 40, 1e-6)
    scan = played(towards(end))
    assert scan.verdict.status == ("escalating" if bad else "diverse")
    assert ds.gate(scan).passed is passes
    assert ds.gate(scan, verdict="diverse,escalating").passed
    assert ds.gate(scan, verdict=["diverse"]).passed is passes


@over("least, passes", [(0.37, True), (0.39, False)])
def test_the_last_block_must_have_the_diversity_asked_for(least: float, passes: bool) -> None:
    gate = ds.gate(of(*HEALTHY), min_diversity=least)
    assert gate.passed is passes and [check.name for check in gate.checks] == ["finite", "verdict", "diversity"]
    assert passes or "It is below from block 3 on." in gate.failed[0].says


def test_a_threshold_takes_the_place_of_the_verdict() -> None:
    scan = of(*LOST)
    assert ds.gate(scan, min_diversity=5e-6).passed and failed(ds.gate(scan, min_diversity=0.05)) == ["diversity"]
    assert failed(ds.gate(scan, min_diversity=5e-6, verdict="diverse")) == ["verdict"]


def test_the_curve_is_the_share_of_the_signal_that_differs() -> None:
    torch.manual_seed(3)
    states = [gaussian(3, 12, 10) + shift for shift in (0.0, 1.0, 2.0)]
    curve, none = diversities(played(states), None)
    for state, value in zip(states, curve, strict=True):
        X = state.double().numpy()
        centred = X - X.mean(1, keepdims=True)
        assert np.isclose(float(value), ((centred**2).sum((1, 2)) / (X**2).sum((1, 2))).mean(), rtol=1e-5)
    assert none is None


class Broken(nn.Module):
    """Adds a NaN in its second block."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(3)]
        self.blocks = nn.ModuleList(layers)

    def forward(self, X: Tensor) -> Tensor:
        for i, block in enumerate(self.blocks):
            X = block(X) * (math.nan if i == 1 else 1.0)
        return X


@over("asked", [{}, {"min_diversity": 1e-9}, {"verdict": "diverse,vanished,collapsed,escalating"}])
def test_a_nan_always_fails(asked: dict) -> None:
    gate = ds.gate(ds.scan(Broken().eval(), torch.randn(2, 9, 16)), **asked)
    assert "finite" in failed(gate) and "NaN or infinity appears first in block" in gate.failed[0].says


def test_diversity_says_nothing_of_a_model_whose_head_gets_noise() -> None:
    scan = replace(of(*HEALTHY), vanished={"head": 1e-9})
    assert scan.verdict.status == "vanished"
    assert failed(ds.gate(scan)) == failed(ds.gate(scan, min_diversity=0.05)) == ["verdict"]
    assert failed(ds.gate(scan, against=of(*HEALTHY))) == ["verdict"]
    assert ds.gate(scan, verdict="vanished").passed


# before and after


@over("end, passes", [(0.38, True), (0.343, True), (0.341, False), (0.6, True)])
def test_a_tenth_may_be_lost(end: float, passes: bool) -> None:
    gate = ds.gate(of(*HEALTHY[:-1], end), against=of(*HEALTHY))
    assert failed(gate) == ([] if passes else ["regression"])
    assert gate.asked.tolerance == 0.1


def test_the_block_since_which_too_much_is_lost() -> None:
    gate = ds.gate(of(0.5, 0.45, 0.2, 0.18), against=of(*HEALTHY), tolerance=0.3)
    [check] = gate.failed
    assert check.name == "regression" and "52.6% less than 0.38 before" in check.says
    assert "From block 2 on it is more." in check.says and "at most 30.0% less" in check.says


def test_who_was_lost_before_may_stay_so_and_who_was_not_may_not_be() -> None:
    assert ds.gate(of(*LOST), against=of(*LOST)).passed
    assert failed(ds.gate(of(*LOST), against=of(*HEALTHY), tolerance=0.9999999)) == ["verdict"]
    floor = of(0.5, 1e-5, 1e-10, 2e-32)
    assert ds.gate(of(0.5, 1e-5, 1e-10, 1e-40), against=floor).passed  # noise has nothing more to lose


def test_both_are_measured_in_the_way_that_counts_for_the_later_one() -> None:
    """An outlier hides that the others are alike, now and not before: the core is compared with the core."""
    hidden = alike(2, 24, 40, 1e-5)
    hidden[:, 0] = 3 * gaussian(2, 40)
    after, before = played(towards(hidden)), played(towards(gaussian(2, 24, 40)))
    now, then = diversities(after, before)
    assert float(now[-1]) < 0.01 and torch.allclose(then, before.sequences["t_div_core"].mean(-1))
    assert "regression" in failed(ds.gate(after, against=before))
    fewer = replace(before, sequences={name: value[:, :1] for name, value in before.sequences.items()}, samples=1)
    now, then = diversities(after, fewer)
    assert torch.allclose(then, fewer.sequences["t_div_core"][:, 0])


def test_every_stream_is_held_to_it() -> None:
    model = nn.Transformer(16, 2, 3, 3, 32, batch_first=True).eval()
    scan = ds.scan(model, (torch.randn(2, 9, 16), torch.randn(2, 7, 16)))
    gate = ds.gate(scan, min_diversity=1.0)
    assert {check.stream for check in gate.failed} == {*scan.streams} and len(scan.streams) == 2
    assert failed(gate)[0].endswith(": diversity") and len(gate.streams) == 2
    alone = replace(scan.streams["encoder"], others={})
    for now, then in ((scan, alone), (alone, scan)):
        with pytest.raises(UsageError, match="must have the same streams"):
            ds.gate(now, against=then)


# wrong use


@over(
    "asked, words",
    [
        ({"min_diversity": 0.0}, r"min_diversity must lie in \(0, 1\]; got 0"),
        ({"min_diversity": 1.5}, "got 1.5"),
        ({"min_diversity": math.nan}, "got nan"),
        ({"tolerance": 0.1}, "there is none. Add against"),
        ({"verdict": "diwerse"}, "Did you mean diverse"),
        ({"verdict": ()}, "at least one"),
        ({"verdict": "diverse,not a number"}, "can never pass"),
    ],
)
def test_thresholds_out_of_range(asked: dict, words: str) -> None:
    with pytest.raises(DepthscopeError, match=f"^gate: .*{words}"):
        ds.gate(of(*HEALTHY), **asked)


@over("tolerance", [-0.1, 1.0, math.nan])
def test_tolerances_out_of_range(tolerance: float) -> None:
    with pytest.raises(UsageError, match=r"tolerance must lie in \[0, 1\)"):
        ds.gate(of(*HEALTHY), against=of(*HEALTHY), tolerance=tolerance)


def test_a_scan_of_another_model() -> None:
    scan = of(*HEALTHY)
    with pytest.raises(UsageError, match="the depth is 3 now and 2 before"):
        ds.gate(scan, against=of(*HEALTHY[:-1]))
    with pytest.raises(UsageError, match="the width is 32 now and 40 before"):
        ds.gate(scan, against=played([gaussian(2, 24, 40)] * 4))
    with pytest.raises(UsageError, match="must have numbers to compare with"):
        ds.gate(
            ds.scan(Broken().eval(), torch.randn(2, 9, 16)), against=ds.scan(Broken().eval(), torch.randn(2, 9, 16))
        )
    assert "different numbers of tokens: 32 now, 9 before" in ds.gate(scan, against=replace(scan, tokens=9)).notes[0]


def test_names_of_verdicts_may_have_lines_between_their_words() -> None:
    assert ds.gate(of(0.5, 1e-8, 1e-40), verdict="at_the_numerical-floor").passed
    with pytest.raises(UnknownNameError):
        ds.gate(of(*HEALTHY), verdict="")


# how it is told


def test_the_words_of_a_gate_that_fails() -> None:
    gate = ds.gate(ds.scan(ds.models.classic(depth=40, d=16, h=2, weights="xavier"), torch.randn(2, 9, 16)))
    said, verdict = str(gate), gate.streams[0]
    for words in ("FAILS.", f"block: {verdict.block}", f"driver: {verdict.driver}", "advice: ", "13 of 41 states"):
        assert words in said
    assert f"{float(verdict.diversity[-1]):.3g}" in said and str(gate).count("\n") < 30
    fine = str(ds.gate(of(*HEALTHY)))
    assert fine.startswith("PASSES.") and fine.count("\n") == 2


def test_a_threshold_above_what_the_verdict_wants_has_its_own_advice() -> None:
    scan = ds.scan(ds.models.classic(depth=6, d=32, h=2, weights="xavier"), torch.randn(2, 16, 32))
    assert not scan.verdict.fix_needed
    gate = ds.gate(scan, min_diversity=0.6)
    assert not gate and gate.streams[0].advice == ds.advise(scan, floor=0.6).text and "DeEscalate" in str(gate)
    assert ds.gate(scan, min_diversity=1.0).streams[0].advice == scan.verdict.advice  # more than can be promised


def test_a_gate_is_kept_as_a_record(tmp_path: Path) -> None:
    gate = ds.gate(of(*LOST), against=of(*HEALTHY))
    again = ds.load(gate.save(tmp_path / "gate.json"))
    assert isinstance(again, ds.Gate) and again.to_dict() == gate.to_dict() and str(again) == str(gate)
    assert json.loads((tmp_path / "gate.json").read_text())["passed"] is False


def test_junit_has_one_case_for_each_check_and_escapes_what_a_model_is_called() -> None:
    name = 'a "model" <script> & \x00\x1b[31m\ud800 of mine'
    gate = replace(ds.gate(of(*LOST), against=of(*HEALTHY)), model=name)
    root = ElementTree.fromstring(junit(gate))
    [suite] = root
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["finite", "verdict", "regression"]
    assert suite.get("tests") == "3" and suite.get("failures") == root.get("failures") == "2"
    assert suite.get("name") == 'a "model" <script> & ??[31m? of mine'
    told = [case.find("failure") for case in cases]
    assert told[0] is None and told[1].get("message") == gate.failed[0].says
    assert gate.streams[0].advice in told[2].text and junit(gate).encode("utf-8")
