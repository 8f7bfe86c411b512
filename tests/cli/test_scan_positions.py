"""depthscope scan --positions and positions inside --metrics."""

import json

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import UsageError
from depthscope.scans.record import JUDGED

SMALL = ["--depth", "3", "--width", "32", "--heads", "2", "--tokens", "12", "--batch", "2"]


def invoke(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_positions_adds_equal_ranges_to_what_is_measured() -> None:
    record = json.loads(invoke("scan", "gpt2", *SMALL, "--positions", "3", "--json", "-").stdout)
    assert {"t_sim", "t_cos", "t_sim[1/3]", "t_sim[2/3]", "t_sim[3/3]"} <= record["states"].keys()
    assert len(record["states"]["t_sim[3/3]"]) == 4
    shown = invoke("scan", "gpt2", *SMALL, "--positions", "3").stdout
    assert "t_sim[1/3]" in shown and "t_sim[3/3]" in shown and "sink_mass" in shown


def test_ranges_by_hand() -> None:
    words = ["--metrics", "t_sim, t_sim[0:4],t_div[4:12]", "--positions", "2"]
    record = json.loads(invoke("scan", "bert", *SMALL, *words, "--json", "-").stdout)
    asked = [name for name in record["states"] if name not in JUDGED]  # the verdict rests on those, asked for or not
    assert {"t_sim", "t_div"} <= {*record["states"]}
    assert [name for name in asked if "[" in name] == ["t_sim[0:4]", "t_div[4:12]", "t_sim[1/2]", "t_sim[2/2]"]
    assert {*asked} <= {"t_sim", "t_sim[0:4]", "t_div[4:12]", "t_sim[1/2]", "t_sim[2/2]"}


def test_ranges_that_are_too_short_are_refused() -> None:
    with pytest.raises(UsageError, match=r"t_sim\[1/8\] must hold two tokens or more .* holds one token of sequence 0"):
        invoke("scan", "bert", *SMALL, "--positions", "8")
    assert invoke("scan", "bert", *SMALL, "--positions", "1").exit_code == 2
