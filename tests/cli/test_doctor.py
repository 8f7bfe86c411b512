"""depthscope doctor: what it says of a model is what the verbs then do; it never fails for what a model is."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import depthscope as ds
import streamed_models
from depthscope.checkups.checkup import checkup
from depthscope.cli.main import app
from depthscope.errors import UnknownNameError
from loops import over

SITES = ["block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out"]


@cache
def looked_at(name: str):
    return checkup(*getattr(streamed_models, name)())


def doctor(*words: str):
    return CliRunner().invoke(app, ["doctor", *words])


def test_an_encoder_and_a_decoder() -> None:
    found = looked_at("t5")
    encoder, decoder = found.streams
    assert (encoder.name, encoder.depth, encoder.blocks) == ("encoder", 3, "encoder.block.*")
    assert (decoder.name, decoder.depth, decoder.blocks) == ("decoder", 2, "decoder.block.*")
    assert encoder.stages == [[9, 32]] and decoder.stages == [[7, 32]]
    assert (encoder.causal, decoder.causal) == (False, True)
    assert encoder.kinds == ["self"] and decoder.kinds == ["cross", "self"]
    assert encoder.heads == decoder.heads == 4
    assert all(one.fixes["block_out"] == "yes" for one in found.streams)
    assert 'ds.scan(model, inputs, stream="decoder")' in found.python(decoder)
    assert "depthscope scan MODEL --stream decoder" in found.commands(decoder)


@over("name", ["t5", "pairs", "tanh_between"])
def test_the_lines_that_are_said_run(name: str) -> None:
    """What doctor says can be done is done, word for word."""
    found = looked_at(name)
    model, inputs = getattr(streamed_models, name)()
    lines = [line for stream in found.streams for line in found.python(stream)]
    assert len(lines) >= 2
    for line in lines:
        made = eval(line, {"ds": ds, "model": model, "inputs": inputs})
        if line.startswith("ds.fix_"):
            with made, torch.no_grad():
                model(**inputs) if isinstance(inputs, dict) else model(inputs)
            assert made.fired > 0


def test_stages_have_their_own_sizes() -> None:
    (stream,) = looked_at("swin").streams
    assert stream.stages == [[64, 16], [16, 32]] and stream.kinds == ["self", "window"]  # the last stage is one window
    assert any("64 tokens of width 16 become 16 of width 32" in note for note in stream.notes)


def test_blocks_that_are_no_modules() -> None:
    (stream,) = looked_at("pairs").streams
    assert stream.how == "sums in the code around modules" and stream.depth == 3
    acts = [site for site, answer in stream.fixes.items() if answer == "yes"]
    assert acts == [site for site in SITES if site != "block_in"]
    assert "its sums are in the code around it" in stream.fixes["block_in"]


def test_a_plain_encoder_and_no_trace_of_the_look() -> None:
    model, tokens = streamed_models.encoder()
    before = model(tokens)
    (stream,) = checkup(model, tokens).streams
    assert stream.how == "modules that are called" and stream.norms == "post" and stream.layout.startswith("(B, n, d)")
    assert set(stream.fixes.values()) == {"yes"} and stream.forecast.startswith("yes, by laws")
    assert torch.equal(model(tokens), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_one_module_again_and_again_and_time_first() -> None:
    class Again(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)

        def forward(self, x):
            return self.block(self.block(self.block(x)))

    (stream,) = checkup(Again().eval(), torch.randn(9, 2, 16)).streams
    assert (stream.how, stream.depth) == ("one module called again and again", 3)
    assert stream.layout.startswith("(n, B, d)")


def test_padding_is_counted() -> None:
    model, tokens = streamed_models.encoder()
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[1, 6:] = True
    (stream,) = checkup(model, {"src": tokens, "src_key_padding_mask": padded}).streams
    assert stream.padding.startswith("3 of 18 tokens")


def test_nothing_to_recognise() -> None:
    result = doctor("streamed_models:linear")
    assert result.exit_code == 1
    assert "nothing recognised" in result.output and "numbered modules: none" in result.output


def test_tokens_that_nothing_mixes() -> None:
    found = looked_at("pointwise")
    assert "no token was seen to change another one" in found.problem
    assert found.tried == {"ds.scan(model, inputs, attention=False)": "works"}
    assert found.recognised and found.streams[0].depth == 3


def test_other_blocks_are_tried_and_what_works_is_said() -> None:
    found = looked_at("tanh_between")
    assert "must be one chain" in found.problem and found.tried == {'ds.scan(model, inputs, blocks="parts.*")': "works"}
    assert "attention: seen 3 times in a pass" in found.seen
    assert 'depthscope scan MODEL --blocks "parts.*"' in found.commands(found.streams[0])


def test_a_model_that_does_not_run() -> None:
    result = doctor("streamed_models:raises")
    assert result.exit_code == 1 and "raised ValueError" in result.output


def test_as_text_and_as_data(tmp_path: Path) -> None:
    text = str(looked_at("t5"))
    for words in ("2 streams recognised", "stream decoder", "3 x encoder.block.*", "--stream decoder"):
        assert words in text
    result = doctor("streamed_models:encoder", "--json", "-")
    record = json.loads(result.stdout)
    assert result.exit_code == 0 and list(record["streams"][0]["fixes"]) == SITES
    assert ds.load(looked_at("t5").save(tmp_path / "t5.json")).streams == looked_at("t5").streams


def test_one_stream_alone() -> None:
    model, inputs = streamed_models.t5()
    assert [one.name for one in checkup(model, inputs, stream="dec").streams] == ["decoder"]
    with pytest.raises(UnknownNameError, match="no stream is called 'middle'"):
        checkup(model, inputs, stream="middle")
