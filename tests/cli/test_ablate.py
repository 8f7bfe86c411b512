"""depthscope ablate: the table, the verdict, the picture, the numbers."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from depthscope.cli.main import app
from depthscope.errors import HookError, UnknownNameError, UsageError
from loops import over

SMALL = ["--depth", "4", "--width", "32", "--heads", "2", "--tokens", "12", "--batch", "2"]


def invoke(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@over(
    "model",
    ["xlnet", "classic"],
    long=["bert", "albert", "gpt2", "llama", "vit", "torch_encoder", "pre_norm"],
)
def test_the_table_and_the_verdict(model: str) -> None:
    shown = " ".join(invoke("ablate", model, *SMALL).stdout.replace("│", " ").split())
    assert shown.count("kept") >= 12 and "Pure attention (skips, ffn, norms taken out)" in shown
    assert "The whole model: relative residual" in shown


def test_numbers_alone_on_stdout_and_files(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.png", "a.json", "numbers")]
    words = ["--parts", "attention_skip,ffn,norms", "--out", files[0], "--out", files[1]]
    record = json.loads(invoke("ablate", "bert", *SMALL, *words, "--json", "-").stdout)
    assert record["format"] == "depthscope.ablations" and len(record["rows"]) == 8
    assert record["rows"][-1]["removed"] == ["attention_skip", "ffn", "norms"]
    written = json.loads(Path(files[1]).read_text())
    assert written.pop("crc32") and written == record and Path(files[0]).stat().st_size > 10_000
    invoke("ablate", "bert", *SMALL, "--parts", "ffn", "--json", files[2])
    assert len(json.loads(Path(files[2]).read_text())["rows"]) == 2


def test_wrong_use_costs_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="no part is called 'skip'"):
        invoke("ablate", "bert", "--parts", "skip")
    with pytest.raises(UsageError, match=r"--out: the file must end in .html, .png, .svg, .pdf, .md or .json; got"):
        invoke("ablate", "bert", "--out", str(tmp_path / "a.txt"))


def test_a_model_that_has_no_such_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parallel.py").write_text(
        "import torch, transformers as T\n"
        "def build():\n"
        "    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)\n"
        "    model = T.GPTNeoXModel(T.GPTNeoXConfig(**sizes, vocab_size=99)).eval()\n"
        "    return model, torch.randint(0, 99, (2, 8))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(HookError, match="attention and feed-forward network join the stream in one sum"):
        invoke("ablate", "parallel:build")
