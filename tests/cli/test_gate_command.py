"""depthscope gate: what a build sees, and its exit code."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError
from loops import over

SMALL = ["--depth", "3", "--width", "32", "--heads", "2", "--tokens", "9", "--batch", "2"]


def gate(*words: str):
    return CliRunner().invoke(app, ["gate", *words])


def test_a_model_that_passes_and_one_that_does_not() -> None:
    assert gate("pre_norm", *SMALL).exit_code == 0
    result = gate("classic", *SMALL[2:], "--depth", "40")
    assert result.exit_code == 1
    for words in (
        "FAILS. classic (Transformer), 40 blocks",
        "driver: mixing by attention",
        "advice:",
        "FAILS   verdict",
    ):
        assert words in result.stdout


def test_json_alone_on_stdout_and_files(tmp_path: Path) -> None:
    xml, numbers = tmp_path / "new" / "g.xml", tmp_path / "g.json"
    result = gate("pre_norm", *SMALL, "--min-diversity", "1", "--junit", str(xml), "--json", "-")
    record = json.loads(result.stdout)
    assert result.exit_code == 1 and record["format"] == "depthscope.gate" and record["passed"] is False
    assert [case.get("name") for case in ElementTree.parse(xml).iter("testcase")] == ["finite", "verdict", "diversity"]
    assert gate("pre_norm", *SMALL, "--json", str(numbers)).exit_code == 0 and ds.Gate.load(numbers).passed


def test_saved_scans_checkpoints_and_models_on_either_side(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    scan, folder = str(tmp_path / "scan.json"), tmp_path / "checkpoint"
    config = transformers.BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=3, num_attention_heads=2)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(folder)
    words = [str(folder), "--tokens", "9", "--batch", "2"]
    assert gate(*words, "--out", scan).exit_code == 0 and isinstance(ds.load(scan), ds.Scan)
    assert gate(scan).exit_code == 0 and gate(scan, "--min-diversity", "1").exit_code == 1
    assert gate(*words, "--against", scan, "--tolerance", "0").exit_code == 0  # the same inputs, bit for bit
    assert gate(scan, "--against", str(folder), *words[1:], "--tolerance", "0").exit_code == 0
    for parameter in model.encoder.layer[2].attention.self.parameters():
        parameter.data.zero_()  # attention gives a constant
    model.encoder.layer[2].output.dense.bias.data.fill_(0.0)
    model.encoder.layer[1].output.LayerNorm.weight.data.fill_(1e-3)
    model.encoder.layer[1].output.LayerNorm.bias.data.normal_()
    model.save_pretrained(folder)
    result = gate(*words, "--against", scan, "--out", str(tmp_path / "both.json"))
    assert result.exit_code == 1 and "FAILS   regression" in result.stdout and "before" in result.stdout
    both = ds.Scan.load(tmp_path / "both.json")
    assert both.before.verdict.fix_needed is False
    second = gate(str(tmp_path / "both.json"))
    assert "the second counts" in second.stderr and second.exit_code == (1 if both.verdict.fix_needed else 0)


@over(
    "words, message",
    [
        (["pre_norm", "--min-diversity", "2"], r"min_diversity must lie in \(0, 1\]"),
        (["pre_norm", "--tolerance", "0.1"], "there is none. Add against"),
        (["pre_norm", "--verdict", "divers"], "Did you mean diverse"),
        (["nowhere.json"], "the file must exist"),
        (["pre_norm", "--against", "SCAN"], "the depth is 3 now and 2 before"),
        (["SCAN", "--inputs", "a:b"], "--inputs: goes with a model alone"),
        (["SCAN", "--stream", "decoder"], "no stream is called 'decoder'"),
        (["pre_norm", "--junit", "FOLDER"], "must be a file"),
    ],
)
def test_wrong_use(words: list[str], message: str, tmp_path: Path) -> None:
    saved = tmp_path / "scan.json"
    if "SCAN" in words:
        CliRunner().invoke(app, ["scan", "pre_norm", *SMALL, "--depth", "2", "--json", str(saved)])
    named = {"SCAN": str(saved), "FOLDER": str(tmp_path)}
    sizes = [] if words[0] in ("SCAN", "nowhere.json") else SMALL  # of models that are built
    result = gate(*(named.get(word, word) for word in words), *sizes)
    assert isinstance(result.exception, DepthscopeError), result.output  # run() makes exit code 2 of it
    with pytest.raises(DepthscopeError, match=message):
        raise result.exception


def test_one_stream_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_streams.py").write_text(
        "import torch\n"
        "def build():\n"
        "    model = torch.nn.Transformer(16, 2, 3, 3, 32, batch_first=True).eval()\n"
        "    return model, (torch.randn(2, 9, 16), torch.randn(2, 7, 16))\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["two_streams:build", "--min-diversity", "1", "--json", "-"]
    found = [json.loads(gate(*words, *more).stdout) for more in ([], ["--stream", "encoder"])]
    streams = [{check["stream"] for check in one["checks"]} for one in found]
    assert streams == [{"encoder", "decoder"}, {"encoder"}]


def test_a_folder_with_a_fix_is_the_fixed_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(**sizes, vocab_size=50, initializer_range=0.02 * (768 / 32) ** 0.5)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path / "plain")
    ds.fix_(model, ds.remedies.DeEscalate(1.0), at="block_out").save(tmp_path / "plain")
    asked = ("--tokens", "9", "--min-diversity", "0.99")
    fixed = gate(str(tmp_path / "plain"), *asked)
    assert fixed.exit_code == 0 and "DeEscalate(tau=1) at block_out" in fixed.output
    (tmp_path / "plain" / "depthscope.json").unlink()
    assert gate(str(tmp_path / "plain"), *asked).exit_code == 1


def test_options_for_a_model_do_not_go_with_a_saved_scan(tmp_path: Path) -> None:
    scan = tmp_path / "s.json"
    gate("pre_norm", *SMALL, "--out", str(scan))
    refused = gate(str(scan), "--depth", "48")
    assert isinstance(refused.exception, DepthscopeError), refused.output  # run() makes exit code 2 of it
    assert "--depth: goes with a model alone" in str(refused.exception)
