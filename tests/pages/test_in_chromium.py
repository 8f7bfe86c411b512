"""Every kind of page in headless Chromium without a network: drawn, switched, downloaded, and never run by its data."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import depthscope as ds
from depthscope.records import Record
from pages.browser import Browser, chromium
from record_examples import KINDS, example

pytestmark = pytest.mark.pages
EVIL = '</script><img src=x onerror="window.hacked=1"><b>bold</b> {{ 7 * 7 }} $x_1$'
NAMED = ("model", "source", "blocks", "processor", "name", "says", "notes", "assumed", "warnings", "remedies", "change")
DRAWN = """
return [...document.querySelectorAll('figure.chart')].map(f => [
  f.querySelector('.title').textContent,
  [...f.querySelectorAll('.scatterlayer .trace path, .barlayer .point path')].filter(p => p.getAttribute('d')).length
  + f.querySelectorAll('.heatmaplayer image').length])
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture(scope="module")
def pair(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    record = example("scans")
    return record, ds.report(record, to=tmp_path_factory.mktemp("pair") / "pair.html")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_drawn_and_fits(name: str, browser: Browser, tmp_path: Path) -> None:
    page = ds.report(example(name), to=tmp_path / "page.html")
    assert page.stat().st_size < 5_000_000
    browser.open(page)
    drawn = browser.run(DRAWN)
    assert drawn or name == "fixes"  # which have no numbers
    assert [title for title, marks in drawn if not marks] == []
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length")
        == 0
    )
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))
    assert browser.run("return [...document.querySelectorAll('table')].every(t => t.caption && t.caption.textContent)")
    assert browser.run(
        "return [...document.querySelectorAll('.plot')].every(p => p.getAttribute('aria-label').length > 20)"
    )
    browser.open(page, width=390)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.errors() == []


def test_a_page_of_all_kinds(browser: Browser, tmp_path: Path) -> None:
    page = ds.report(*map(example, KINDS), to=tmp_path / "all.html")
    assert page.stat().st_size < 5_000_000
    browser.open(page)
    assert [title for title, marks in browser.run(DRAWN) if not marks] == [] and browser.errors() == []


def test_the_scale_is_switched_and_curves_are_hidden(browser: Browser, pair: tuple[Any, Path]) -> None:
    browser.open(pair[1])
    scale = "return document.querySelector('.plot')._fullLayout.yaxis.type"
    seen = "return document.querySelector('.plot')._fullData.map(t => t.visible)"
    assert browser.run(scale) == "linear"
    browser.click(".scale button", 1)
    browser.until(f"{scale} === 'log'", "the axis is logarithmic")
    pressed = (
        "return [...document.querySelectorAll('figure .scale')][0].querySelector('[aria-pressed=true]').textContent"
    )
    assert browser.run(pressed) == "log"
    browser.click(".scale button", 0)
    browser.until(f"{scale} === 'linear'", "the axis is linear again")
    first, second, *_ = browser.run(seen)
    assert first is True and second is False  # t_cos is there when asked for
    browser.click(".tools .curve", 0)
    browser.click(".tools .curve", 1)
    browser.until(
        f"const v = ({seen.replace('return ', '')}); return v[0] === false && v[1] === true", "curves changed"
    )
    assert browser.errors() == []


def test_values_are_shown_where_the_mouse_is(browser: Browser, pair: tuple[Any, Path]) -> None:
    record, page = pair
    browser.open(page)
    said = browser.hover("figure.chart .plot")
    assert "t_sim, before" in said and f"{float(record.before['t_sim'][1]):.4g}" in said.replace("\u2212", "-")


def test_tables_are_sorted(browser: Browser, pair: tuple[Any, Path]) -> None:
    record, page = pair
    browser.open(page)
    column = "return [...document.querySelector('tbody').rows].map(r => Number(r.cells[1].dataset.v))"
    wanted = record.before["t_sim"].tolist()
    assert browser.run(column) == wanted
    browser.click("thead .sort", 1)
    assert browser.run(column) == sorted(wanted)
    browser.click("thead .sort", 1)
    assert browser.run(column) == sorted(wanted, reverse=True)
    assert browser.run("return document.querySelector('[aria-sort]').getAttribute('aria-sort')") == "descending"


def test_downloads_hold_all_numbers(browser: Browser, pair: tuple[Any, Path]) -> None:
    record, page = pair
    browser.open(page)
    name, text = browser.downloaded("a[download$='.csv']")
    rows = [*csv.DictReader(io.StringIO(text))]
    assert name.endswith(".csv") and [float(row["t_div after"]) for row in rows] == record["t_div"].tolist()
    name, text = browser.downloaded("a[download$='.json']")
    assert name.endswith(".json") and json.loads(text) == record.to_dict()


def test_a_line_is_copied(browser: Browser, pair: tuple[Any, Path]) -> None:
    browser.open(pair[1])
    browser.driver.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.click("button.copy")
    browser.until("return document.querySelector('button.copy').textContent === 'Copied'", "it says so")
    copied = browser.run("return navigator.clipboard.readText()")
    assert copied == browser.run("return document.querySelector('code').textContent") and copied.startswith("ds.fix_(")


def test_light_dark_and_paper(browser: Browser, pair: tuple[Any, Path]) -> None:
    page, ink = (
        "return getComputedStyle(document.body).backgroundColor",
        "return document.querySelector('.plot')._fullLayout.font.color",
    )
    looks = []
    for dark in (False, True):
        browser.open(pair[1], dark=dark)
        looks.append((browser.run(page), browser.run(ink)))
    assert looks[0][0] == "rgb(255, 255, 255)" and looks[0] != looks[1] and looks[0][1] != looks[1][1]
    assert browser.printed().startswith(b"%PDF")
    browser.run("window.dispatchEvent(new Event('beforeprint'))")
    browser.until("return document.querySelector('.plot')._fullLayout.width === 690", "charts fit the paper")
    assert browser.run(ink) == looks[0][1]  # and are drawn in dark ink, also of a dark screen
    browser.run("window.dispatchEvent(new Event('afterprint'))")
    browser.until("return document.querySelector('.plot')._fullLayout.width > 690", "charts fit the screen again")
    assert browser.errors() == []


def test_every_control_is_reached_by_keyboard(browser: Browser, pair: tuple[Any, Path]) -> None:
    browser.open(pair[1])
    assert browser.run("return [...document.querySelectorAll('button, a, .scroll, pre')].every(e => e.tabIndex >= 0)")
    for landmark in ("header", "nav", "main", "footer"):
        assert browser.run("return document.querySelectorAll(arguments[0]).length", landmark) == 1
    browser.run("document.querySelector('.scale button:last-child').focus()")
    browser.press_enter()
    browser.until("return document.querySelector('.plot')._fullLayout.yaxis.type === 'log'", "enter presses it")
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def hostile(value: Any) -> Any:
    """The same with words of a model, a file or a user that try to run."""
    if isinstance(value, list | tuple):
        return type(value)(map(hostile, value))
    if isinstance(value, dict):
        return {key: hostile(one) for key, one in value.items()}
    if not is_dataclass(value):
        return value
    new: dict[str, Any] = {}
    for f in fields(value):
        old = getattr(value, f.name)
        if f.name in NAMED and isinstance(old, str):
            new[f.name] = EVIL
        elif f.name in NAMED and isinstance(old, list) and all(isinstance(one, str) for one in old):
            new[f.name] = [EVIL]
        else:
            new[f.name] = hostile(old)
    return replace(value, **new)  # type: ignore[type-var]


def test_words_of_others_stay_words(browser: Browser, tmp_path: Path) -> None:
    kinds = [name for name in KINDS if name != "reproduction"]  # its name must be that of an experiment
    records: dict[str, Record] = {f"{name} {EVIL}": hostile(example(name)) for name in kinds}
    browser.open(ds.report(records, to=tmp_path / "page.html"))
    said = browser.run("return document.querySelector('main').textContent")
    assert said.count(EVIL) > 4 * len(kinds) and all(label in said for label in records)
    assert browser.run("return window.hacked") is None
    assert browser.run("return document.querySelectorAll('img, main b, main script').length") == 0
    assert browser.run("return document.scripts.length") == 3  # numbers, plotly.js, and our own
    assert browser.errors() == []


def test_names_in_charts_stay_words(browser: Browser, tmp_path: Path) -> None:
    scan = replace(example("scan"), model=EVIL)  # type: ignore[type-var]
    browser.open(ds.report({EVIL: scan, "b": example("scan")}, to=tmp_path / "page.html"))
    assert browser.run("return document.querySelector('.curve').textContent") == f"t_sim, {EVIL}"
    assert EVIL in browser.hover("figure.chart .plot") and browser.run("return window.hacked") is None
    browser.open(write_card(scan, tmp_path / "card.html"))
    assert EVIL in browser.run("return document.body.textContent") and browser.run("return window.hacked") is None


def write_card(record: Any, to: Path) -> Path:
    """A card as a notebook shows it; the page says itself that it is ready."""
    to.write_text(
        f'<!doctype html><html data-ready="1"><meta charset="utf-8"><body>{record._repr_html_()}</body></html>'
    )
    return to
