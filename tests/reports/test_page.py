"""Pages and cards without a browser: what is escaped, labelled, carried along and told to those who do not see charts."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import depthscope as ds
from depthscope.errors import MissingExtraError, UsageError
from depthscope.records import Record
from depthscope.reports.pages import card, downloads, page
from depthscope.reports.pages.figures import description, figure
from depthscope.reports.pages.numbers import shown
from depthscope.reports.story import CHAPTERS, Chart, Code, Facts, Heat, Picture, Story, Table, Trace, Words, curve
from depthscope.reports.telling import story_of, told
from record_examples import KINDS, example

EVIL = '</script><script>alert("x")</script>&<!--'


def figures_in(html: str) -> Any:
    return json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])  # type: ignore[index]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_tells_a_story_in_order(name: str) -> None:
    story = story_of(example(name)) if example(name).FORMAT != "depthscope.scan" else told([("", example(name))])[0]
    chapters = list(story.chapters)
    assert chapters == [one for one in CHAPTERS if one in chapters] and {"verdict", "evidence", "how"} <= {*chapters}
    assert story.records and (story.charts or name == "fixes")  # which have no numbers


def test_numbers_of_charts_are_in_the_page_and_nothing_ends_the_script(tmp_path: Path) -> None:
    scan = replace(example("scan"), model=EVIL)  # type: ignore[type-var]
    html = ds.report({EVIL: scan, "other": scan}, to=tmp_path / "p.html").read_text()
    assert html.count("</script>") == 3 and "alert(" in html and '<script>alert("x")' not in html
    first = figures_in(html)[0]
    assert first["legend"][0]["name"] == f"t_sim, {EVIL}"
    assert first["data"][0]["y"] == pytest.approx(scan["t_sim"].tolist(), rel=1e-6)  # type: ignore[index]
    assert "<" not in first["data"][0]["name"]  # plotly reads tags in names


def test_scripts_are_the_only_ones_that_may_run(tmp_path: Path) -> None:
    import base64
    import hashlib

    html = ds.report(example("scan"), to=tmp_path / "p.html").read_text()
    policy = unescape(re.search(r'Content-Security-Policy" content="(.*?)"', html)[1])  # type: ignore[index]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    allowed = re.findall(r"'sha256-(.*?)'", policy)
    assert len(scripts) == 2 and "default-src 'none'" in policy and "unsafe-inline'; img" in policy
    assert allowed == [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("+A1", "'+A1"), ("-x", "'-x"), ("@SUM", "'@SUM"), ("\tx", "'\tx"), ("-0.5", "-0.5"), ("a=b", "a=b"),
     (-0.1, "-0.1"), (1 / 3, repr(1 / 3)), (7, "7"), (math.nan, "nan")],
)  # fmt: skip
def test_no_cell_is_a_formula(cell: Any, written: str) -> None:
    text = downloads.csv_text(Table("t", ["=name", "b"], [[cell, "x, y"]]))
    assert [*csv.reader(io.StringIO(text))] == [["'=name", "b"], [written, "x, y"]]


def test_a_record_that_is_too_large_is_left_out_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "LARGEST", 100)
    html = ds.report(example("scan"), to=tmp_path / "p.html").read_text().split("<script>")[0]
    assert "too large for a page" in html and "data:application/json" not in html


def test_the_first_records_that_fit_are_carried_along(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = example("forecast"), example("comparison")
    sizes = [len(link) for link in downloads.json_links([small, large])]
    monkeypatch.setattr(downloads, "LARGEST", sum(sizes) - 1)
    assert [bool(link) for link in downloads.json_links([small, large, small])] == [True, False, True]


def test_labels_and_forecasts_beside_scans(tmp_path: Path) -> None:
    scan = ds.scan(ds.models.classic(depth=4, d=16, h=2), torch.randn(2, 9, 16))
    html = ds.report({"mine": scan, "yours": scan}, ds.forecast(scan, depth=6), to=tmp_path / "p.html").read_text()
    names = [one["name"] for one in figures_in(html)[0]["legend"]]
    assert names == [
        "t_sim, mine",
        "t_cos, mean cosine, mine",
        "t_sim, yours",
        "t_cos, mean cosine, yours",
        "t_sim forecast",
    ]
    dashed = figures_in(html)[0]["data"][-1]
    assert dashed["x"] == [4, 5, 6] and dashed["line"]["dash"] != "solid"  # from the last measured block on
    assert [one["meta"]["part"] for one in figures_in(html)[0]["data"][-3:]] == ["band lower", "band upper", "line"]


def test_equal_labels_do_not_hide_a_scan() -> None:
    scan: Any = example("scan")
    (story,) = told([("a", scan), ("a", scan), ("", scan)])
    assert [*story.records] == ["scan-a", "scan-a (2)", "scan-3: Transformer"]


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    wrong: list[Callable[[], Any]] = [ds.report, lambda: ds.report({}), lambda: ds.report({"a": 3})]  # type: ignore[dict-item]
    for call in wrong:
        with pytest.raises(
            UsageError, match=r"^report: give one or more records, made by ds\.scan.*; got (nothing|int)\.$"
        ):
            call()


def test_without_jinja_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in (page, card):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    page.environment.cache_clear()
    with pytest.raises(MissingExtraError, match=r"^a page needs jinja2\. pip install 'jinja2>=3\.1'$"):
        ds.report(example("scan"), to=tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()
    assert example("scan")._repr_html_() is None  # a notebook shows the text then


def test_without_matplotlib_a_card_has_words_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "find_spec", lambda name: None if name == "matplotlib" else True)
    found = example("scan")._repr_html_()
    assert found is not None and "<img" not in found and "DIVERSE" in found


def test_charts_are_told_to_those_who_do_not_see_them() -> None:
    chart = Chart("Similarity", [curve("a", [0.25, math.nan, 0.5]), Trace("empty", [math.nan])])
    assert (
        description(chart) == "Curves, Similarity, over block: a goes from 0.25 at 0 to 0.5 at 2; empty has no numbers."
    )
    heat = Heat("Gaps", [[0.1, 0.9]], [1], [1, 2])
    assert description(heat) == "Heat map, Gaps: 1 x 2 values from 0.1 to 0.9."


def test_a_band_stays_on_a_log_scale() -> None:
    chart = Chart("t_div", [curve("a", [1.0, 0.01], band=([0.5, 0.0], [1.0, 0.1]))], log=True)
    lower, upper, line = figure(chart)["data"]
    assert lower["y"] == [0.5, 0.005] and upper["fill"] == "tonexty" and line["y"] == [1.0, 0.01]


def test_a_scale_with_a_middle_is_even_on_both_sides() -> None:
    (heat,) = figure(Heat("m", [[-1.0, 3.0, math.nan]], [1], [1, 2, 3], middle=0.0))["data"]
    assert (heat["zmin"], heat["zmax"], heat["z"]) == (-3.0, 3.0, [[-1.0, 3.0, None]])


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.123456, "0.1235"), (1e-7, "1.00e-7"), (12345.6, "1.23e4"), (3, "3"), ("x", "x"), (math.inf, "inf")],
)
def test_numbers_as_tables_show_them(value: Any, said: str) -> None:
    assert shown(value) == said


@dataclass(frozen=True, eq=False)
class Watched(Record):
    """A kind of record that no report knows."""

    FORMAT = "tests.watched"

    model: str
    t_sim: Tensor  # (steps, blocks)
    loss: Tensor
    looks: dict[str, Tensor]


def test_a_kind_that_nobody_described_has_its_charts(tmp_path: Path) -> None:
    record = Watched(EVIL, torch.rand(3, 4), torch.rand(5), {"t_div": torch.rand(2, 3)})
    html = ds.report(record, to=tmp_path / "p.html").read_text()
    heat, line, look = figures_in(html)
    assert heat["data"][0]["type"] == "heatmap" and [len(row) for row in heat["data"][0]["z"]] == [3] * 4
    assert look["data"][0]["z"][2] == pytest.approx(record.looks["t_div"][:, 2].tolist(), rel=1e-6)
    assert line["data"][0]["y"] == pytest.approx(record.loss.tolist(), rel=1e-6)
    assert EVIL not in html and EVIL in unescape(html)


@pytest.mark.parametrize("name", KINDS)
def test_a_repr_is_one_short_line_that_says_what_came_out(name: str) -> None:
    record = example(name)
    said = repr(record)
    assert said.startswith(f"{type(record).__name__}(") and "\n" not in said and "tensor" not in said
    assert 20 < len(said) < 300
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Record):
            assert "tensor" not in repr(value)


def test_a_verdict_shows_itself() -> None:
    verdict = example("scan").verdict  # type: ignore[attr-defined]
    assert repr(verdict) == "Verdict(diverse, t_div 0.35)"
    card = verdict._repr_html_()
    assert card.startswith("<div") and verdict.text in unescape(card) and "<img" not in card


def test_a_card_has_the_line_to_copy_and_a_picture() -> None:
    card = ds.advise(n=8, depth=6, d=16, h=2)._repr_html_()
    assert card is not None and "ds.fix_(model, ds.remedies.DeEscalate(0.05)" in unescape(card)
    assert 'src="data:image/png;base64,' in card and 'alt="Curves, Expected token diversity' in card


def test_every_word_of_a_story_is_escaped() -> None:
    curves = Chart(EVIL, [Trace(EVIL, [0.1, 0.2], band=([0, 0], [1, 1]))], says=EVIL, x=EVIL, y=EVIL, marks={EVIL: 0.5})
    heat = Heat(EVIL, [[0.1]], [EVIL], [EVIL], says=EVIL, x=EVIL, y=EVIL, unit=EVIL)
    table = Table(EVIL, [EVIL], [[EVIL]], about=EVIL)
    words = [Words(EVIL, kind=kind, badge=EVIL, label=EVIL) for kind in ("text", "lead", "note", "small")]  # type: ignore[arg-type]
    parts = [*words, curves, heat, table, Facts({EVIL: EVIL}), Code(EVIL, EVIL), Picture(EVIL, b"png", EVIL)]
    story = Story(EVIL, EVIL, {EVIL: example("scan")}, parts, status=EVIL)
    for stories in ([story], [story, story]):
        html = page.html(stories)
        assert html.count("<script") == html.count("</script") == 3 and "<!--" not in html.split("<script")[0]
        assert html.count("&lt;/script&gt;") > 30 * len(stories)  # all of it is there, as words
        charts = figures_in(html)
        for chart in charts:
            chart.pop("legend")  # the page writes its names as text
        written = json.dumps(charts).replace("<extra></extra>", "")  # of ours
        assert "alert(" in written and "<" not in written
    short = card._card(replace(story, todo=[Code(EVIL, EVIL)], how=[Words(EVIL, "note")]))
    assert "<script" not in short and "<!--" not in short and short.count("&lt;script&gt;") > 10
