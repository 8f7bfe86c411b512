"""Every experiment at its small size, run once: claims can fail, those that are counted hold, numbers stay the same.

golden.py says how far a number may move, and how numbers are renewed. Where the small size takes more than a second or
two, that run is long, and a fast one at a size that proves nothing (TINIER) shows that run, claims and figure work.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pytest
import torch

import depthscope as ds
from depthscope.experiments.run import module_of
from loops import over

NAMES = ds.experiments.names()
# What makes the small run one of which everything is claimed; two more are in test_language_experiments.py, because
# small runs of theirs have not learned anything.
LONGER: dict[str, dict[str, Any]] = {
    "beyond/learning_rate": {"epochs": 20},
    "beyond/placement": {"epochs": 6},
    "depth_use/wirings": {"steps": 160},
    "dovonon2024/corrupted": {"epochs": 10},
    "dovonon2024/deeper": {"epochs": 10},
    "dovonon2024/less_data": {"epochs": 10},
    "dovonon2024/qr_or_direct": {"epochs": 12},
    "dovonon2024/text": {"steps": 256},
    "yu2023/fig6": {"epochs": 20},
}
TINIER: dict[str, dict[str, Any]] = {
    "beyond/advisor": {"designs": 1, "depths": (12,)},
    "beyond/causal_escalation": {"depth": 4, "d": 32, "lengths": 17},
    "beyond/depth_frontier": {"depths": (1, 2), "mark": 0.0, "epochs": 1, "d": 8, "q": 8},
    "beyond/depth_race": {"depths": (1, 2), "epochs": 1, "d": 8, "q": 8},
    "beyond/ffn_not_neutral": {"trials": 2, "depth": 4, "n": 16, "d": 64},
    "beyond/forecast_error": {"designs": 1, "hard": 1, "depths": (4,), "widths": (64,), "tokens": (16,)},
    "beyond/forecast_models": {"models": ("bert",), "depth": 5, "d": 32, "first": 3},
    "beyond/gradient_growth": {"designs": 1, "hard": 1, "depths": (12,), "tokens": (16,)},
    "beyond/leak": {"steps": 3},
    "beyond/learning_rate": {"depth": 2, "epochs": 1, "d": 8, "q": 8},
    "beyond/phase_diagram": {"d": 16, "tokens": (8,), "trials": 2, "weights": (1.5,)},
    "beyond/nonlinear_tau": {"trials": 2, "depth": 4, "n": 8, "d": 16},
    "beyond/placement": {"depth": 2, "d": 8, "q": 8, "sites": ("block_out",)},
    "beyond/pre_norm_escalation": {"depth": 16, "n": 8, "d": 16, "trials": 2},
    "beyond/shelf": {"depth": 2, "d": 8, "n": 8, "arms": ("none", "DeEscalate tau=0.5", "GFSA", "pre_norm")},
    "beyond/verdicts": {"every": 90},
    "beyond/violated_assumptions": {"trials": 2, "depth": 2, "n": 8, "d": 16},
    "beyond/will_it_train": {"deepest": 10},
    "depth_use/wirings": {"depth": 2, "d": 8, "q": 8, "steps": 1, "segment": 16, "rows": 2},
    "dong2021/bounds": {"networks": 4, "narrow": 64, "wide": 128},
    "dong2021/chained_attention": {"repeats": 3, "depth": 4, "d": 32, "n": 8},
    "dong2021/circle": {"points": 50, "rollout": 10, "budgets": (5,), "trials": 2},
    "dong2021/convex_hull": {"d": 12, "epochs": 1, "train": 50, "test": 20},
    "dong2021/memorization": {"d": 8, "epochs": 1, "sequences": 4, "length": 8},
    "dong2021/path_lengths": {"depth": 4, "d": 32, "n": 8},
    "dong2021/residual_by_depth": {"families": ("bert",), "depth": 3, "d": 32, "n": 8},
    "dong2021/sensitivity": {"trials": 2, "n": 12, "d": 32, "depth": 6},
    "dong2021/sorting": {"d": 8, "epochs": 1, "train": 60, "test": 20},
    "dovonon2024/changing_layers": {"cases": 3, "depth": 50},
    "dovonon2024/deeper": {"epochs": 1, "d": 8, "q": 8, "depths": (2,)},
    "dovonon2024/dominance_table": {"models": ("gpt2",), "depth": 2, "d": 32, "n": 8},
    "dovonon2024/eigen_asymptotics": {"cases": 10, "depth": 200, "depths": (12,)},
    "dovonon2024/qr_or_direct": {"d": 8, "h": 2, "q": 8, "epochs": 1, "width": 24, "images": 4, "rounds": 1},
    "dovonon2024/text": {"steps": 1, "test": 128, "segment": 16},
    "yu2023/fig1": {"depth": 6, "d": 32, "n": 8},
    "yu2023/fig2": {"trials": 2, "n": 16, "d": 32, "q": 32, "depth": 4},
    "yu2023/fig3": {"trials": 5, "n": 8, "depth": 4},
    "yu2023/fig4": {"trials": 2, "n": 16, "d": 32, "q": 32, "depth": 6},
    "yu2023/fig5": {"trials": 2, "n": 16, "d": 32, "q": 32, "depth": 6},
    "yu2023/fig6": {"depth": 2, "epochs": 1, "q": 8},
    "yu2023/fig8": {"widths": (10,), "trials": 2},
    "yu2023/other_attentions": {"trials": 2, "n": 16, "d": 32, "q": 32, "depth": 3},
    "yu2023/proposition_2_9": {"cases": 2, "draws": 100},
    "yu2023/section_2_3": {"trials": 2, "n": 16, "d": 32, "q": 32, "similarities": (0.1, 0.5, 0.99)},
}
# Trainings on text take as long at any size: fast tests of their claims are in test_language_experiments.py. The sizes
# of path_effectiveness are those of its tasks: test_dong_tasks.py has smaller ones. Two train as dovonon2024/deeper does
# and have fast tests of their claims in test_smoothing.py.
LONG = {*TINIER, "beyond/causal_de_escalation", "dong2021/path_effectiveness", "yu2023/fig7"}
LONG |= {"dovonon2024/corrupted", "dovonon2024/less_data"}


@pytest.mark.parametrize("name", TINIER)
def test_a_still_smaller_run_has_numbers_claims_and_a_figure(name: str) -> None:
    result = ds.reproduce(name, smoke=True, **TINIER[name])
    assert result.numbers and all(isinstance(value, torch.Tensor) for value in result.numbers.values())
    assert all(isinstance(claim, ds.experiments.Claim) for claim in result.claims)
    assert any(axes.has_data() for axes in result.draw().axes)
    assert json.loads(json.dumps(result.to_dict()))["name"] == name


# a case each: the longest take seconds, and processes share them out
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in NAMES])
def test_an_experiment_gives_what_it_gave(name: str, tmp_path: Path) -> None:
    result = ds.reproduce(name, smoke=True)
    longer = dataclasses.replace(result.config, **LONGER.get(name, {}))
    wrong = [
        *claims_that_cannot_fail([*result.claims, *module_of(name).claims(result.numbers, longer)]),
        *claims_that_went_wrong(result.claims),
        *numbers_that_moved(result),
        *files_that_lack(result, tmp_path),
    ]
    assert not wrong, "\n".join(wrong)


def claims_that_cannot_fail(claims: list[ds.experiments.Claim]) -> Iterator[str]:
    """What nothing would give (no effect, a guess, the bound of another case) is known, and would not do."""
    for claim in claims:
        if claim.counted and not claim.can_fail:
            yield f"cannot fail: {claim.says} is {claim.null:g} if nothing is to it, wanted {claim.wanted}"


def claims_that_went_wrong(claims: list[ds.experiments.Claim]) -> Iterator[str]:
    """What is counted holds, and what is known to differ differs."""
    if not any(claim.counted for claim in claims):
        yield "no claim is counted"
    for claim in claims:
        if claim.holds != claim.expected and not claim.reported:
            yield f"{claim.status}: {claim.says} is {claim.value:g}, wanted {claim.wanted}"


def numbers_that_moved(result: ds.experiments.Reproduction) -> Iterator[str]:
    found, kept = {claim.says: claim.value for claim in result.claims}, golden.read()[result.name]
    if found.keys() != kept.keys():
        yield f"claims came or went: {sorted(found.keys() ^ kept.keys())}"
    for says in found.keys() & kept.keys():
        value, tolerance = kept[says]
        if found[says] != pytest.approx(value, rel=0, abs=tolerance):
            yield f"moved: {says} is {found[says]!r}, was {value!r} and may move by {tolerance:.2g}"


def files_that_lack(result: ds.experiments.Reproduction, folder: Path) -> Iterator[str]:
    """The figure is drawn, and the record is JSON with claims, numbers and the settings."""
    picture = result.save(folder)
    if picture.stat().st_size <= 10_000:
        yield f"the figure has only {picture.stat().st_size} bytes"
    record = json.loads(picture.with_name("results.json").read_text())["experiments"][picture.stem]
    settings = json.loads(json.dumps(dataclasses.asdict(module_of(result.name).SMOKE)))
    if not (record["claims"] and record["numbers"] and record["config"] == settings):
        yield "the record lacks claims, numbers or settings"


@over("name", NAMES)
def test_the_file_says_how_to_run_it(name: str) -> None:
    assert f"depthscope reproduce {name} " in module_of(name).__doc__


def test_every_golden_number_is_of_an_experiment() -> None:
    assert sorted(golden.read()) == sorted(NAMES)
