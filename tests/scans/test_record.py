"""The Scan record: JSON and back, tables, text and HTML."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import depthscope as ds
from depthscope.errors import RecordError
from loops import over


@pytest.fixture
def scan() -> ds.Scan:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return ds.scan(model, torch.randn(4, 9, 16), gradients=lambda out: out.square().mean())


def test_save_and_load_give_the_same_record(scan: ds.Scan, tmp_path) -> None:
    scan.save(tmp_path / "deep" / "scan.json")
    other = ds.Scan.load(tmp_path / "deep" / "scan.json")
    assert other.to_dict() == scan.to_dict()
    assert torch.equal(other["t_sim"], scan["t_sim"])
    assert other.verdict == scan.verdict
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["scan.json"]


def test_json_is_strict_and_versioned_also_with_nan(tmp_path) -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    with torch.no_grad():
        model.layers[1].linear2.bias[0] = math.inf
    scan = ds.scan(model, torch.randn(2, 5, 16))
    scan.save(tmp_path / "s.json")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    record = json.loads((tmp_path / "s.json").read_text(), parse_constant=refuse)
    assert record["format"] == "depthscope.scan" and record["version"] == ds.Scan.VERSION
    again = ds.Scan.load(tmp_path / "s.json")
    assert again["t_sim"].isnan().tolist() == scan["t_sim"].isnan().tolist() == [False, False, True]
    assert again.broken == scan.broken == (2, "ffn")


@over(
    "text, message",
    [
        ("{", "must be JSON written by save"),
        ("[]", "must say format"),
        ('{"format": "depthscope.scan", "version": 99}', "reads format version .*; got 99"),
        ('{"format": "depthscope.scan", "version": 1}', "missing: model, depth"),
    ],
)
def test_a_file_that_is_no_record(text: str, message: str, tmp_path) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        ds.Scan.load(tmp_path / "s.json")


def test_a_missing_file(tmp_path) -> None:
    with pytest.raises(RecordError, match="the file must exist"):
        ds.Scan.load(tmp_path / "nothing.json")


def test_to_pandas_has_a_row_for_every_state(scan: ds.Scan) -> None:
    frame = scan.to_pandas()
    assert len(frame) == 4
    assert frame["t_sim"].tolist() == scan["t_sim"].tolist()
    assert frame["escalation_rate[attention]"].tolist()[1:] == scan.per_step("escalation_rate")["attention"].tolist()
    assert frame["delta"].tolist()[1:] == scan["delta"].tolist() and math.isnan(frame["delta"][0])
    assert frame["gradient_norm"].tolist()[1:] == scan["gradient_norm"].tolist()


def test_text_says_what_matters(scan: ds.Scan) -> None:
    text = str(scan)
    for words in ("3 blocks layers.*", "post-norm", scan.verdict.status.upper(), "t_sim", "dropout was on"):
        assert words in text


def test_html_stands_alone(scan: ds.Scan, tmp_path) -> None:
    page = ds.report(scan, scan, to=tmp_path / "r.html").read_text()
    html, library = page.split("<script>", 1)[0], page.split("<script>", 1)[1]
    assert "2 scans together" in html and page.endswith("</html>") and "plotly.js" in library
    addresses = [one.split('"')[0] for one in html.split('href="')[1:]]
    assert addresses and all(one.startswith(("#", "data:text/csv", "data:application/json")) for one in addresses)
    assert "src=" not in html


def test_the_gist_names_a_stream_that_is_one_of_several(scan: ds.Scan) -> None:
    assert scan.gist().startswith(f"{scan.title}, {scan.depth} blocks: ")
    other = replace(scan, stream="decoder")
    assert other.gist().startswith(f"{scan.title}, decoder, {scan.depth} blocks: ")
