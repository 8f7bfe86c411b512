"""The same command twice gives the same JSON, byte for byte, apart from times; two threads give the same numbers nearly."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from loops import over

SMALL = "classic --depth 3 --width 32 --heads 2 --tokens 9 --batch 2".split()
TRAINED = "train digits --depth 1 --d 8 --h 2 --q 8 --epochs 1 --set train=64".split()
TIMES = ("seconds", "crc32")
TOLERANCE = 1e-4  # docs/reliability.md says so


def bare(text: str) -> str:
    """The lines of a file, without those of times and of the checksum over them."""
    return "\n".join(line for line in text.splitlines() if not any(f'"{name}":' in line for name in TIMES))


@over("command", [*"scan forecast spectrum paths bound ablate doctor gate depth train".split()])
def test_the_same_command_twice_gives_the_same_bytes(command: str, tmp_path: Path) -> None:
    words = TRAINED if command == "train" else [command, *SMALL, *["--parts", "skips"] * (command == "ablate")]
    texts = []
    for name in ("a.json", "b.json"):
        torch.rand(7)  # whatever was drawn before
        done = CliRunner().invoke(app, [*words, "--json", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        texts.append(bare((tmp_path / name).read_text()))
    assert texts[0] == texts[1] and len(texts[0]) > 500


@pytest.mark.long
@over("command", ["scan", "forecast", "depth", "reproduce"])
def test_another_process_gives_the_same_bytes(command: str, tmp_path: Path) -> None:
    """With other hashes of words, too."""
    texts = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.json"
        what = ["yu2023/fig8", "--smoke", "--out", str(tmp_path / seed)] if command == "reproduce" else SMALL
        words = [sys.executable, "-m", "depthscope", command, *what, "--json", str(path)]
        subprocess.run(words, check=True, capture_output=True, env=os.environ | {"PYTHONHASHSEED": seed})
        texts.append(bare(path.read_text()))
    assert texts[0] == texts[1]


def test_two_threads_give_the_numbers_of_one_within_the_tolerance() -> None:
    model, X = ds.models.classic(depth=6, d=64, h=4).eval(), torch.randn(4, 32, 64)
    one = ds.scan(model, X).to_dict()
    torch.set_num_threads(2)
    try:
        two = ds.scan(model, X).to_dict()
    finally:
        torch.set_num_threads(1)
    for table in ("states", "steps", "heads"):
        near(two[table], one[table])


def near(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            near(found[key], wanted[key])
    else:
        numbers = json.dumps(found), json.dumps(wanted)
        there, here = (
            torch.tensor(json.loads(n.replace('"nan"', "NaN").replace('"inf"', "Infinity"))) for n in numbers
        )
        torch.testing.assert_close(there, here, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
