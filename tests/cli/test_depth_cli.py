"""depthscope depth: numbers alone on stdout, what is missing is said, wrong use is told before anything runs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import UsageError

SMALL = ["--depth", "4", "--width", "32", "--heads", "2", "--tokens", "12", "--batch", "2"]


def invoke(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_a_preset_without_a_head_is_measured_and_says_what_is_missing(tmp_path: Path) -> None:
    page, picture = str(tmp_path / "a.html"), str(tmp_path / "a.png")
    record = json.loads(invoke("depth", "gpt2", *SMALL, "--json", "-", "--out", page, "--out", picture).stdout)
    assert record["format"] == "depthscope.depth" and record["depth"] == 4 and record["prices"] is None
    assert len(record["rest"]["influence"]) == 4 and "no loss" in record["notes"][0]
    assert "block influence" in Path(page).read_text() and Path(picture).stat().st_size > 10_000


def test_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--save: needs --drop"):
        invoke("depth", "gpt2", "--save", str(tmp_path / "small"))
    with pytest.raises(UsageError, match="the folder must be new"):
        invoke("depth", "gpt2", "--drop", "1", "--save", str(tmp_path))
    with pytest.raises(UsageError, match="works with presets and Hugging Face models"):
        invoke("depth", "torch.nn:Identity", "--text", "a.txt")
