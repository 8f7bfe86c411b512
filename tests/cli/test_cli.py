"""The command line: what a user types, what it prints, and no traceback for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import depthscope as ds
from depthscope.cli.main import app
from depthscope.errors import DepthscopeError
from loops import over

SMALL = ["--depth", "3", "--width", "32", "--heads", "2", "--tokens", "9", "--batch", "2"]


def invoke(*words: str):
    return CliRunner().invoke(app, list(words))


def test_scan_prints_chart_verdict_and_table() -> None:
    result = invoke("scan", "classic", *SMALL)
    assert result.exit_code == 0
    for words in ("Transformer", "3 blocks blocks.*", "1.0 ┤", "DIVERSE", "lambda_2"):
        assert words in result.output


@over("preset", ["bert", "albert", "xlnet", "gpt2", "llama", "qwen3", "t5", "vit", "deit", "pre_norm", "torch_encoder"])
def test_presets_have_the_depth_that_was_asked_for(preset: str) -> None:
    result = invoke("scan", preset, *SMALL, "--json", "-")
    assert result.exit_code == 0
    record = json.loads(result.stdout)
    assert record["depth"] == 3 and record["width"] == 32


def test_json_alone_on_stdout_and_into_a_file(tmp_path: Path) -> None:
    record = json.loads(invoke("scan", "classic", *SMALL, "--json", "-").stdout)
    assert record["format"] == "depthscope.scan"
    invoke("scan", "classic", *SMALL, "--json", str(tmp_path / "s.json"))
    assert ds.Scan.load(tmp_path / "s.json").to_dict() == record


def test_fix_shows_before_and_after_and_writes_reports(tmp_path: Path) -> None:
    page, picture, record = tmp_path / "r.html", tmp_path / "p.png", tmp_path / "r.json"
    result = invoke(
        "scan", "classic", *SMALL, "--fix", "de_escalate", "--tau", "1",
        "--out", str(page), "--out", str(picture), "--out", str(record),
    )  # fmt: skip
    assert result.exit_code == 0
    assert "Transformer + DeEscalate(tau=1) at block_out" in result.output
    shown = page.read_text()
    assert "before and after DeEscalate(tau=1) at block_out" in shown and shown.count('<figure class="chart"') == 6
    assert picture.stat().st_size > 10_000
    both = json.loads(record.read_text())
    assert both["before"]["remedies"] == [] and max(both["after"]["states"]["t_sim"][1:]) < 1e-6


@over(
    "preset, words", [("gpt2", "DeEscalate(tau=0.5, form=sink) at sa_sum"), ("xlnet", "DeEscalate(tau=0.5) at sa_sum")]
)
def test_fix_at_a_site_of_causal_and_time_first_models(preset: str, words: str) -> None:
    result = invoke("scan", preset, *SMALL, "--fix", "de_escalate", "--tau", "0.5", "--at", "sa_sum")
    assert result.exit_code == 0 and words in result.output


def test_a_model_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def build():\n"
        "    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 4, enable_nested_tensor=False)\n"
        "def batch():\n    return torch.randn(2, 5, 16)\n"
        "def broken():\n    raise ValueError('no weights')\n"
    )
    monkeypatch.chdir(tmp_path)
    assert "4 x layers.*" in invoke("doctor", "mine:build", "--inputs", "mine:batch").output
    for words, message in [
        (["mine:build"], "needs inputs"),
        (["mine:biuld", "--inputs", "mine:batch"], "Did you mean build"),
        (["nowhere:build"], "must be importable"),
        (["mine:broken"], "raised ValueError: no weights"),
        (["mine:batch", "--inputs", "mine:batch"], "must return an nn.Module"),
    ]:
        with pytest.raises(DepthscopeError, match=message):
            CliRunner().invoke(app, ["scan", *words], catch_exceptions=False)


def test_a_local_hugging_face_folder(tmp_path: Path) -> None:
    import transformers as T

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    T.BertModel(T.BertConfig(**sizes, vocab_size=99)).save_pretrained(tmp_path / "bert")
    result = invoke("scan", str(tmp_path / "bert"), "--tokens", "9", "--json", "-")
    assert json.loads(result.stdout)["depth"] == 2
    with pytest.raises(DepthscopeError, match=r"must hold config\.json"):
        CliRunner().invoke(app, ["scan", str(tmp_path)], catch_exceptions=False)


def test_text_as_input(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("the tokens grow alike, block after block. " * 5)
    result = invoke("scan", "bert", *SMALL, "--text", str(tmp_path / "t.txt"), "--json", "-")
    assert json.loads(result.stdout)["samples"] == 2
    for name, message in [("no.txt", "file must exist"), ("short.txt", "must give at least 9 tokens; got 2")]:
        (tmp_path / "short.txt").write_text("hi")
        with pytest.raises(DepthscopeError, match=message):
            CliRunner().invoke(app, ["scan", "bert", *SMALL, "--text", str(tmp_path / name)], catch_exceptions=False)


def test_a_text_of_unknown_tokens_is_refused(tmp_path: Path) -> None:
    """A folder without tokenizer files: transformers makes a tokenizer without words, which knows none."""
    import transformers as T

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = T.BertModel(T.BertConfig(**sizes, vocab_size=99))
    model.save_pretrained(tmp_path / "bert")
    (tmp_path / "t.txt").write_text("the tokens grow alike, block after block. " * 5)
    command = ["scan", str(tmp_path / "bert"), "--tokens", "9", "--text", str(tmp_path / "t.txt"), "--json", "-"]
    with pytest.raises(DepthscopeError, match=r"are unknown to its tokenizer\. Put the tokenizer"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "tokens", "grow"]  # some of them are enough
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    T.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    assert json.loads(invoke(*command).stdout)["depth"] == 2


def test_doctor_says_what_was_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mixer.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Mixer(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.mix = nn.Linear(5, 5)\n"
        "    def forward(self, x):\n        return x + self.mix(x.mT).mT\n"
        "def build():\n    return nn.Sequential(Mixer(), Mixer()), torch.randn(2, 5, 16)\n"
    )
    monkeypatch.chdir(tmp_path)
    output = invoke("doctor", "mixer:build").output
    assert "none was seen in the blocks" in output and "2 x *" in output


@over("shelf", ["metrics", "remedies", "models", "experiments"])
def test_ls(shelf: str) -> None:
    output = invoke("ls", shelf).output
    expected = {
        "metrics": dir(ds.metrics),
        "remedies": dir(ds.remedies),
        "models": ["bert", "classic", "llama", "post_norm", "sinkhorn", "unit_gain"],
        "experiments": ds.experiments.names(),
    }[shelf]
    assert all(name in output for name in expected)


@over(
    "words, message",
    [
        (["scan", "berd"], "Did you mean bert"),
        (["scan", "classic", "--metrics", "t_simm"], "Did you mean t_sim"),
        (["scan", "classic", "--heads", "3", "--width", "32"], "heads must divide the width"),
        (["scan", "classic", "--depth", "0"], "depth must be from 1 to 1,000,000; got 0"),
        (["scan", "classic", "--out", "x.docx"], "must end in .html"),
        (["scan", "classic", *SMALL, "--fix", "de_escalte"], "Did you mean DeEscalate"),
        (["scan", "gpt2", *SMALL, "--fix", "soft_decay"], "a causal model needs a form"),
        (["scan", "classic", *SMALL, "--fix", "attn_scale", "--tau", "1"], "is the strength of de_escalate"),
        (["scan", "classic", *SMALL, "--fix", "de_escalate", "--at", "ffn"], "Did you mean ffn_in"),
        (["scan", "classic", *SMALL, "--json", "/proc/nope/x.json"], "folder must be writable"),
        (["reproduce", "yu2023/fig22"], "Did you mean yu2023/fig2"),
        (["reproduce", "yu2023/fig2", "--set", "depth"], "must be name=value"),
        (["reproduce", "yu2023/fig2", "--set", "depth=0"], "depth must be 2 or more"),
        (["reproduce", "yu2023/fig2", "--out", "/proc/nope"], "folder must be writable"),
        (["scan", "classic", *SMALL, "--text", "x", "--inputs", "a:b"], "works with presets"),
        (["scan", "vit", *SMALL, "--text", "x"], "does not read text"),
        (["scan", "no/such/model"], "must load with transformers"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], message: str) -> None:
    with pytest.raises(DepthscopeError, match=message):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_no_traceback_in_a_real_process() -> None:
    done = subprocess.run([sys.executable, "-m", "depthscope", "scan", "berd"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == "" and "Traceback" not in done.stderr and "error: no preset is called 'berd'" in done.stderr


QUICK = ("reproduce", "yu2023/proposition_2_3", "--set", "trials=20", "--set", "n=6", "--set", "d=8")


def test_reproduce_prints_claims_and_writes_figure_and_results(tmp_path: Path) -> None:
    result = invoke(*QUICK, "--out", str(tmp_path))
    assert result.exit_code == 0
    for words in ("yu2023/proposition_2_3", "wanted", "holds", "3 of 3 claims hold"):
        assert words in result.output
    shown = sorted(p.name for p in (tmp_path / "yu2023").iterdir() if not p.name.startswith("."))  # a lock may stay
    assert shown == ["proposition_2_3.png", "results.json"]


def test_reproduce_json_alone_on_stdout(tmp_path: Path) -> None:
    record = json.loads(invoke(*QUICK, "--out", str(tmp_path), "--json", "-").stdout)
    assert [c["holds"] for c in record["yu2023/proposition_2_3"]["claims"]] == [True] * 3


@over("expected, code, words", [(True, 1, "FAILS"), (False, 0, "differs (known)")])
def test_only_a_claim_that_was_expected_to_hold_fails_a_run(
    expected: bool, code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from depthscope.experiments.yu2023 import proposition_2_3

    claim = ds.experiments.Claim("two is one", 2.0, 1.0, 1.0, expected=expected)
    monkeypatch.setattr(proposition_2_3, "claims", lambda numbers, cfg: [claim])
    result = invoke(*QUICK, "--out", str(tmp_path))
    assert result.exit_code == code and words in result.output


def test_an_interrupted_run_keeps_what_was_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthscope.experiments import run
    from depthscope.experiments.yu2023 import proposition_2_3, proposition_2_9

    def interrupted(cfg: object) -> dict:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "find", lambda name: ["yu2023/proposition_2_3", "yu2023/proposition_2_9"])
    monkeypatch.setattr(proposition_2_9, "run", interrupted)
    monkeypatch.setattr(proposition_2_3, "SMOKE", proposition_2_3.Config(trials=20, n=6, d=8))
    result = invoke("reproduce", "yu2023", "--smoke", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "interrupted in yu2023/proposition_2_9: no half-written file is left" in result.stderr
    record = json.loads((tmp_path / "yu2023_smoke" / "results.json").read_text())
    assert list(record["experiments"]) == ["proposition_2_3"]
    assert not (tmp_path / "yu2023_smoke" / "proposition_2_9.png").exists()


def test_an_interrupt_while_saving_is_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from depthscope.experiments import Reproduction

    def interrupted(self: object, folder: str) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reproduction, "save", interrupted)
    result = invoke(*QUICK, "--out", str(tmp_path))
    assert result.exit_code == 130 and result.stdout == ""
    assert "interrupted in yu2023/proposition_2_3" in result.stderr


def test_forecast_of_a_model_and_of_sizes(tmp_path: Path) -> None:
    result = invoke("forecast", "bert", *SMALL)
    assert result.exit_code == 0 and "no block was computed" in result.output
    figure, record = tmp_path / "f.png", tmp_path / "f.json"
    result = invoke(
        "forecast", "--depth", "30", "--width", "4096", "--heads", "32", "--wiring", "pre_norm", "--tau", "0.1",
        "--out", str(figure), "--json", str(record),
    )  # fmt: skip
    assert result.exit_code == 0 and figure.stat().st_size > 10_000
    assert ds.Forecast.load(record).depth == 30
    both = [
        json.loads(invoke("forecast", "classic", *SMALL, "--tau", tau, "--json", "-").stdout) for tau in ("0", "0.9")
    ]
    assert both[0]["t_sim"][-1] > 2 * both[1]["t_sim"][-1]


def test_forecast_says_what_it_cannot_follow() -> None:
    assert invoke("forecast", "xlnet", *SMALL).exit_code == 0  # what has no law is followed by samples
    assert invoke("forecast", "--wiring", "pre_nrm").exit_code != 0


def test_forecast_says_whether_it_trains_at_a_rate() -> None:
    sizes = ("forecast", "--depth", "12", "--width", "32", "--heads", "4", "--n", "16")
    result = invoke(*sizes, "--lr", "1e-5")
    assert result.exit_code == 0 and "It trains at 1e-05 with probability" in " ".join(result.output.split())
    assert "Largest learning rate" in result.output
    told = json.loads(invoke(*sizes, "--lr", "3e-2", "--advise", "--json", "-").stdout)
    assert told["trains"]["probability"] < 0.5 and told["trains"]["lr"] == 3e-2 and told["advice"]["lr"] == 3e-2


def test_forecast_advises_measures_and_reads_scans(tmp_path: Path) -> None:
    result = invoke("forecast", "--depth", "20", "--width", "64", "--n", "16", "--advise")
    assert result.exit_code == 0 and "The mildest change that helps" in " ".join(result.output.split())
    figure, saved = tmp_path / "f.png", tmp_path / "s.json"
    result = invoke("forecast", "classic", *SMALL, "--measure", "--out", str(figure), "--json", "-")
    record = json.loads(result.stdout)
    assert len(record["measured_t_sim"]) == len(record["t_sim"]) and figure.stat().st_size > 10_000
    assert invoke("scan", "classic", *SMALL, "--json", str(saved)).exit_code == 0
    result = invoke("forecast", str(saved), "--depth", "20", "--advise", "--json", "-")
    record = json.loads(result.stdout)
    assert len(record["t_sim"]) == 21 and record["measured"] > 0 and record["advice"]["options"]
    assert "--measure: needs a model" in str(invoke("forecast", "--measure").exception)
