"""A model larger than the memory of the process: the numbers of one that fits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import UsageError
from depthscope.models import offloaded
from depthscope.models.random_inputs import random_inputs
from depthscope.models.resolve import hugging_face, resolve
from depthscope.models.sizes import Sizes

HERE = Path(__file__).parent
BLOCKS = 16
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")


Saved = tuple[Path, torch.nn.Module, torch.Tensor, int]  # the folder of a model, the model, inputs, size in bytes


def saved(folder: Path, width: int, blocks: int, shard: str) -> Saved:
    """A Llama in shards."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=8 * width, num_hidden_layers=blocks, num_attention_heads=4, vocab_size=64
    )
    model = transformers.LlamaModel(config).eval()
    model.save_pretrained(folder, max_shard_size=shard)
    ids = torch.randint(0, 64, (2, 8))
    torch.save(ids, folder / "ids.pt")
    files = list(folder.glob("*.safetensors"))
    assert len(files) > 5
    return folder, model, ids, sum(file.stat().st_size for file in files)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """About 120 MB."""
    found = saved(tmp_path_factory.mktemp("large"), 256, BLOCKS, "10MB")
    assert found[-1] > 100e6
    return found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """More than 1 MB."""
    found = saved(tmp_path_factory.mktemp("small"), 64, 4, "300KB")
    assert found[-1] > 1e6
    return found


@pytest.mark.long
def test_a_third_of_the_models_size_is_enough(large: Saved) -> None:
    folder, model, ids, size = large
    command = [sys.executable, str(HERE / "limited.py"), str(folder), str(size // 3)]
    # else glibc keeps more and more of what it freed, and how much it keeps differs from run to run
    gives_back = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=gives_back)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((folder / "found.json").read_text())
    assert found["loading"] < size / 3 and found["away"] > 6 * BLOCKS, "the weights were to stay on disk"
    assert "alloc" in found["all at once"] or "mmap" in found["all at once"]
    one, other = ds.scan(model, ids), ds.Scan.load(folder / "limited.json")
    for name in one.keys():
        torch.testing.assert_close(other[name], one[name], rtol=1e-6, atol=1e-6, msg=name)
    assert other.notes == one.notes and other.causal == one.causal and other.verdict == one.verdict
    with ds.fix_(model, ds.remedies.DeEscalate()):
        fixed = ds.scan(model, ids, attention=False)["t_sim"]
    torch.testing.assert_close(torch.tensor(found["fixed"], dtype=torch.float64), fixed, rtol=1e-6, atol=1e-6)
    for name, given in (("forecast", {"inputs": ids}), ("by weights", {"n": 8})):
        forecast = ds.forecast(model, **given).t_sim
        torch.testing.assert_close(torch.tensor(found[name], dtype=torch.float64), forecast, rtol=1e-6, atol=1e-6)


def test_a_folder_larger_than_the_free_memory_is_offloaded_unasked(
    small: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _, _, size = small
    at_hand, _ = hugging_face(str(folder), Sizes(), None)
    assert not any(p.is_meta for p in at_hand.parameters())
    monkeypatch.setattr(offloaded, "free_memory", lambda: size - 1)
    model, ids = hugging_face(str(folder), Sizes(), None)
    assert any(p.is_meta for p in model.parameters())
    places = [(p.is_meta, p.shape) for p in model.parameters()]
    with pytest.raises(UsageError, match="gradients= needs the weights of the model at hand"):
        ds.scan(model, ids, gradients=lambda out: out.last_hidden_state.sum())
    ds.forecast(model, n=8)
    assert [(p.is_meta, p.shape) for p in model.parameters()] == places
    assert torch.equal(model(ids).last_hidden_state, at_hand(ids).last_hidden_state)


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 * 10**9), ("500 mb", 5 * 10**8), ("1.5k", 1500), ("77", 77)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert offloaded.number_of_bytes(text) == size


def test_what_is_no_size_and_no_folder_is_told() -> None:
    with pytest.raises(UsageError, match="--memory: must be a size such as 2GB or 500MB; got 'much'"):
        offloaded.number_of_bytes("much")
    with pytest.raises(UsageError, match="--offload, --memory: work with Hugging Face models only; got 'bert'"):
        resolve("bert", Sizes(), memory="1MB")


def test_the_command_line_offloads(small: Saved, tmp_path: Path) -> None:
    folder, model, _, _ = small
    out = tmp_path / "scan.json"
    words = [
        "scan",
        str(folder),
        "--offload",
        str(tmp_path / "off"),
        "--memory",
        "1MB",
        "--tokens",
        "8",
        "--batch",
        "2",
    ]
    done = CliRunner().invoke(app, [*words, "--no-attention", "--json", str(out)])
    assert done.exit_code == 0, done.output
    torch.manual_seed(0)
    one = ds.scan(model, random_inputs(model, 8, 2, 0), attention=False)
    torch.testing.assert_close(ds.Scan.load(out)["t_sim"], one["t_sim"], rtol=1e-6, atol=1e-6)
