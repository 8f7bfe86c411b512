"""Every experiment at its small size, run once: claims can fail, those that are counted hold, numbers stay the same.

golden.py says how far a number may move, and how numbers are renewed.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pytest

import depthscope as ds
from depthscope.experiments.run import module_of
from loops import over

NAMES = ds.experiments.names()
# What makes the small run one of which everything is claimed; two more are in test_language_experiments.py, because
# small runs of theirs have not learned anything.
LONGER: dict[str, dict[str, Any]] = {
    "beyond/learning_rate": {"epochs": 20},
    "beyond/placement": {"epochs": 6},
    "dovonon2024/corrupted": {"epochs": 10},
    "dovonon2024/deeper": {"epochs": 10},
    "dovonon2024/less_data": {"epochs": 10},
    "dovonon2024/qr_or_direct": {"epochs": 12},
    "dovonon2024/text": {"steps": 256},
    "yu2023/fig6": {"epochs": 20},
}


@pytest.mark.parametrize("name", NAMES)  # a case each: the longest take seconds, and processes share them out
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
