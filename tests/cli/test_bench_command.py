"""depthscope bench: one tiny cell, files of every kind, and refusals in one line."""

import json
from pathlib import Path

from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError
from loops import over

TINY = ["--width", "16", "--tokens", "6", "--batch", "2", "--depth", "2", "--repeats", "1", "--no-memory"]


def bench(*words: str):
    return CliRunner().invoke(app, ["bench", *words])


def test_one_tiny_cell(tmp_path: Path) -> None:
    page, record = tmp_path / "b.md", tmp_path / "b.json"
    done = bench(*TINY, "--kind", "encoder", "--out", str(page), "--json", str(record))
    assert done.exit_code == 0 and "1 of 1 cells" in done.stdout and "2 x 6" in done.stdout
    found = ds.load(record)
    assert [str(one.cell) for one in found.cells] == ["encoder, d 16, h 1, 2 x 6, 2 blocks"]  # type: ignore[attr-defined]
    lines = page.read_text().splitlines()
    assert lines[0] == "## What a scan costs" and any(line.startswith("| encoder | 16 | 1 | 2 x 6 |") for line in lines)
    assert max(map(len, lines)) <= 100
    again = bench(*TINY, "--kind", "encoder", "--before", str(record))
    assert again.exit_code == 0 and "states before" in again.stdout


def test_json_alone_on_stdout() -> None:
    done = bench(*TINY, "--kind", "decoder", "--heads", "2", "--clock", "cpu", "--threads", "1", "--json", "-")
    record = json.loads(done.stdout)
    assert (
        record["format"] == "depthscope.bench" and record["clock"] == "cpu" and record["cells"][0]["cell"]["heads"] == 2
    )


@over(
    "words, said",
    [
        (["--grid", "quick", "--width", "64"], "--grid names all sizes; got --width too"),
        (["--width", "wide"], "--width: must be whole numbers with commas between them; got 'wide'"),
        (["--grid", "huge"], "--grid must be quick or full"),
        (["--kind", ","], "there must be a cell to measure"),
        (["--kind", "rnn", *TINY], "kind must be one of"),
        (["--device", "quantum", *TINY], "the device must be one that works here; got 'quantum'"),
        (["--out", "b.txt"], "must end in"),
        (["--before", "no-such-file.json"], "the file must exist"),
    ],
)
def test_refusals(words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.exit_code != 0 and said in str(done.exception) and isinstance(done.exception, DepthscopeError)
