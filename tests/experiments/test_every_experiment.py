"""Every experiment at its small size: claims that are expected to hold do, and numbers stay what they were.

A change that moves the numbers on purpose renews them, python tests/experiments/test_every_experiment.py, and says so.
"""

import dataclasses
import json
from pathlib import Path

import pytest

import depthscope as ds
from depthscope.experiments.run import module_of

GOLDEN = Path(__file__).with_name("golden.json")
# training multiplies rounding: no golden numbers
TRAINED = {
    "beyond/causal_de_escalation",
    "beyond/depth_race",
    "beyond/leak",
    "beyond/learning_rate",
    "beyond/placement",
    "dong2021/circle",
    "dong2021/convex_hull",
    "dong2021/memorization",
    "dong2021/path_effectiveness",
    "dong2021/sorting",
    "dovonon2024/corrupted",
    "dovonon2024/deeper",
    "dovonon2024/less_data",
    "dovonon2024/text",
    "dovonon2024/qr_or_direct",
    "yu2023/fig6",
    "yu2023/fig7",
}
each = pytest.mark.parametrize("name", ds.experiments.names())


@pytest.fixture(scope="module")
def done() -> dict:
    return {}


def result(name: str, done: dict) -> ds.experiments.Reproduction:
    if name not in done:
        done[name] = ds.reproduce(name, smoke=True)
    return done[name]


@each
def test_what_is_expected_to_hold_holds(name: str, done: dict) -> None:
    claims = result(name, done).claims
    assert any(claim.expected for claim in claims)
    assert [claim.says for claim in claims if claim.expected and not claim.holds] == []


@each
def test_what_is_known_to_differ_differs(name: str, done: dict) -> None:
    assert [claim.says for claim in result(name, done).claims if not claim.expected and claim.holds] == []


@pytest.mark.parametrize("name", [n for n in ds.experiments.names() if n not in TRAINED])
def test_the_numbers_are_what_they_were(name: str, done: dict) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    found = {claim.says: claim.value for claim in result(name, done).claims}
    assert found == pytest.approx(golden, rel=0.05, abs=1e-3)


@each
def test_the_figure_is_drawn_and_the_record_is_json(name: str, done: dict, tmp_path: Path) -> None:
    picture = result(name, done).save(tmp_path)
    assert picture.stat().st_size > 10_000
    record = json.loads(picture.with_name("results.json").read_text())["experiments"][name.partition("/")[2]]
    assert (
        record["claims"]
        and record["numbers"]
        and record["config"] == json.loads(json.dumps(dataclasses.asdict(module_of(name).SMOKE)))
    )


@each
def test_the_file_says_how_to_run_it(name: str) -> None:
    assert f"depthscope reproduce {name} " in module_of(name).__doc__


if __name__ == "__main__":
    rows = {
        n: {c.says: c.value for c in ds.reproduce(n, smoke=True).claims}
        for n in ds.experiments.names()
        if n not in TRAINED
    }
    GOLDEN.write_text(json.dumps(rows, indent=1))
