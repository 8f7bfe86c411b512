"""Every command and every block of code of docs/how-to/depth.md runs, one after another, in one folder."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from depthscope.cli.main import app

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "depth.md").read_text()


def saved(folder: Path):
    """A small GPT-2 with a tokenizer of characters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    letters = {one: i for i, one in enumerate("abcdefghijklmnopqrstuvwxyz .?")}
    words = Tokenizer(models.WordLevel(letters, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(letters), **sizes)).eval()
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(folder)
    return model


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    model = saved(tmp_path / "tiny")
    (tmp_path / "corpus.txt").write_text("the ferry could not cross before noon and people waited " * 8)
    for command in re.findall(r"```bash\n(.*?)\n```", PAGE, re.DOTALL):
        program, *words = shlex.split(command)
        assert program == "depthscope"
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0 and "earn their place" in " ".join(done.stdout.split())
    assert Path("depth.png").stat().st_size > 10_000
    smaller = AutoModelForCausalLM.from_pretrained("smaller")
    assert smaller.config.num_hidden_layers == 2
    with pytest.raises(Exception, match="the folder must be new"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    names = {"model": model, "other": smaller.eval(), "ids": torch.randint(29, (4, 16))}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(code, names)
    assert names["smaller"] is model and model.config.num_hidden_layers == 2
    assert names["found"].tolerance == 0.02


def test_lines_fit() -> None:
    prose = [line for line in PAGE.splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 102] == []
