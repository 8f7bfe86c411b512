"""depthscope paths: what a user types and sees."""

import json
from pathlib import Path

from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError
from loops import over

SMALL = ["--depth", "3", "--width", "32", "--heads", "2", "--tokens", "9", "--batch", "2"]


def invoke(*words: str):
    return CliRunner().invoke(app, ["paths", *words])


def test_the_table_has_a_row_for_each_length_and_a_verdict() -> None:
    result = invoke("bert", *SMALL)
    assert result.exit_code == 0
    for words in ("paths: BertModel", "3 blocks, 2 heads each", "of all paths", "constant", "residual"):
        assert words in result.output


def test_pictures_and_records(tmp_path: Path) -> None:
    picture, record = tmp_path / "p.png", tmp_path / "p.json"
    result = invoke(
        "classic", *SMALL, "--form", "attention", "--draw", "5", "--out", str(picture), "--out", str(record)
    )
    assert result.exit_code == 0
    assert picture.stat().st_size > 10_000 and ds.PathLengths.load(record).drawn
    assert json.loads(invoke("classic", *SMALL, "--json", "-").stdout)["format"] == "depthscope.paths"


def test_without_a_model_paths_are_counted() -> None:
    result = invoke("--depth", "96", "--heads", "96")
    assert result.exit_code == 0 and "10^190.7 paths" in result.output and "T5-11B" in result.output
    assert "10^-422.1" in invoke("--depth", "200", "--heads", "128").output
    record = json.loads(invoke("--depth", "2", "--heads", "3", "--json", "-").stdout)
    assert [round(10**x) for x in record["log10_counts"]] == [1, 6, 9]


@over(
    "words, message",
    [
        (["bert", "--out", "p.txt"], "must end in .html, .png"),
        (["--out", "p.png"], "needs a model"),
        (["classic", "--draw", "5"], "form='attention'"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str) -> None:
    result = invoke(*words)
    assert isinstance(result.exception, DepthscopeError) and message in str(result.exception)
