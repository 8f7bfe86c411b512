"""--stream on the command line names the stream that the verb is of."""

import json

import pytest
import torch
from typer.testing import CliRunner

import depthscope as ds
import streamed_models
from depthscope.cli.main import app
from depthscope.cli.options import Chosen
from depthscope.errors import UsageError


def shown(*words: str) -> dict:
    result = CliRunner().invoke(app, [*words, "--json", "-"], catch_exceptions=False)
    return json.loads(result.stdout)


def test_scan() -> None:
    decoder = ds.scan(*streamed_models.t5()).streams["decoder"]
    record = shown("scan", "streamed_models:t5", "--stream", "decoder")
    assert record["stream"] == "decoder" and list(record["others"]) == ["encoder"]
    assert record["states"]["t_sim"] == pytest.approx(decoder["t_sim"].tolist(), rel=1e-6)


def test_a_remedy_acts_in_that_stream_alone() -> None:
    record = shown("scan", "streamed_models:t5", "--stream", "decoder", "--fix", "de_escalate")
    before, after = record["before"], record["after"]
    assert len(after["remedies"]) == 1 and after["others"]["encoder"]["remedies"] == []
    assert after["others"]["encoder"]["states"]["t_sim"] == before["others"]["encoder"]["states"]["t_sim"]
    assert after["states"]["t_sim"][-1] < before["states"]["t_sim"][-1] / 2


def test_forecast() -> None:
    model, inputs = streamed_models.t5()
    torch.manual_seed(0)
    decoder = ds.forecast(model, inputs, stream="decoder")
    record = shown("forecast", "streamed_models:t5", "--stream", "decoder")
    assert len(record["t_sim"]) == 3 and record["t_sim"] == pytest.approx(decoder.t_sim.tolist(), abs=0.05)


def test_a_verb_that_does_not_take_it_says_so() -> None:
    def verb(model, inputs, *, blocks=None): ...

    assert Chosen(model="bert", blocks="layers.*").where(verb) == {"blocks": "layers.*"}
    with pytest.raises(UsageError, match="--stream: verb does not take it"):
        Chosen(model="bert", stream="decoder").where(verb)
