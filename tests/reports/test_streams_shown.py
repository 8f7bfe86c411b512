"""All streams of a model are shown, each with its own verdict and numbers; stages with their sizes."""

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import depthscope as ds
import streamed_models
from depthscope.reports.rows import header, table
from depthscope.reports.scans import sheets


@pytest.fixture(scope="module")
def t5() -> ds.Scan:
    return ds.scan(*streamed_models.t5())


def test_every_stream_has_a_sheet_with_its_own_numbers(t5: ds.Scan) -> None:
    text = str(t5)
    assert "2 streams: encoder (3 blocks) is the main one; decoder (2 blocks) below" in text
    encoder, decoder = text.split("─ T5Model, decoder")
    for part, scan in ((encoder, t5), (decoder, t5.streams["decoder"])):
        for value in scan["t_sim"].tolist():
            assert f" {value:.3f} " in part
        assert scan.verdict.status.upper() in part
    card = t5._repr_html_()
    assert card is not None and "<em>encoder</em>" in card and "<em>decoder</em>" in card


def test_the_stream_that_was_asked_for_is_the_main_one() -> None:
    text = str(ds.scan(*streamed_models.t5(), stream="decoder"))
    assert "decoder (2 blocks) is the main one; encoder (3 blocks) below" in text
    assert text.index("T5Model, decoder") < text.index("T5Model, encoder")


def test_one_stream_is_shown_as_ever() -> None:
    scan = ds.scan(*streamed_models.pairs())
    assert len(sheets(scan)) == 1 and sheets(scan)[0].title == "Pairs" and "streams" not in str(scan)


def test_before_and_after_stream_by_stream(t5: ds.Scan, tmp_path: Path) -> None:
    model, inputs = streamed_models.t5()
    with ds.fix_(model, ds.remedies.DeEscalate(1.0)):
        both = replace(ds.scan(model, inputs), before=t5)
    titles = [sheet.title for sheet in sheets(both)]
    assert [title.split(" + ")[0] for title in titles[:4]] == ["T5Model, encoder", "T5Model, decoder"] * 2
    assert [title.split()[0] for title in titles[4:]] == ["encoder", "decoder"]
    again = ds.Scan.load(both.save(tmp_path / "both.json"))
    assert str(again) == str(both)


def test_a_stream_that_nothing_touched_is_not_compared(t5: ds.Scan) -> None:
    model, inputs = streamed_models.t5()
    with ds.fix_(model, ds.remedies.DeEscalate(1.0), stream="decoder"):
        both = replace(
            ds.scan(model, inputs, stream="decoder"), before=ds.scan(*streamed_models.t5(), stream="decoder")
        )
    titles = [sheet.title for sheet in sheets(both)]
    assert len(titles) == 5 and titles[-1].startswith("decoder before and after")
    assert both.remedies and both.others["encoder"].remedies == []


def test_the_picture_has_a_curve_for_each_stream(t5: ds.Scan) -> None:
    figure = Figure()
    t5.draw(figure)
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert "t_sim, T5Model, encoder" in labels and "t_sim, T5Model, decoder" in labels
    assert "T5Model, encoder" in figure.axes[2].get_title()


def test_stages_have_columns_of_their_sizes() -> None:
    scan = ds.scan(*streamed_models.swin())
    names, cells = table(scan)
    assert names[:3] == ["block", "n", "d"]
    assert [row[1:3] for row in cells] == [["64", "16"]] * 3 + [["16", "32"]] * 2
    assert "64 then 16 tokens of width 16 then 32" in header(scan)
    assert table(ds.scan(*streamed_models.pairs()))[0][:2] == ["block", "t_sim"]
