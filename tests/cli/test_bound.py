"""depthscope bound: the verdict, the files, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import UsageError

SMALL = ["--depth", "2", "--width", "16", "--heads", "2", "--tokens", "8", "--batch", "2"]


def call(*args):
    return CliRunner().invoke(app, ["bound", *args])


def test_the_verdict_says_vacuous_and_by_how_much():
    done = call("bert", *SMALL)
    assert done.exit_code == 0
    text = " ".join(done.output.replace("│", " ").split())
    assert "Pure attention with this model's weights" in text
    assert "orders of magnitude" in text


def test_json_comes_alone_and_a_picture_is_written(tmp_path):
    done = call("classic", *SMALL, "--json", "-", "--out", str(tmp_path / "bounds.png"))
    record = json.loads(done.stdout)
    assert record["verdict"] and len(record["blocks"]) == 2
    assert (tmp_path / "bounds.png").stat().st_size > 10_000


def test_numbers_go_to_a_file(tmp_path):
    assert call("classic", *SMALL, "--json", str(tmp_path / "a.json")).exit_code == 0
    assert json.loads((tmp_path / "a.json").read_text())["width"] == 16


def test_a_wrong_name_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match=r"must end in \.html, \.png, \.svg, \.pdf, \.md or \.json; got 'a.txt'"):
        CliRunner().invoke(app, ["bound", "bert", "--out", "a.txt"], catch_exceptions=False)


def test_a_causal_model_is_refused():
    with pytest.raises(UsageError, match="causal mask"):
        CliRunner().invoke(app, ["bound", "gpt2", *SMALL], catch_exceptions=False)
