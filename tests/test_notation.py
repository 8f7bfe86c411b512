"""The notation table knows every metric, and the page in docs is the table."""

from pathlib import Path

import depthscope as ds
from depthscope.notation import SYMBOLS, markdown


def test_every_metric_has_a_symbol() -> None:
    assert set(dir(ds.metrics)) <= {symbol.name for symbol in SYMBOLS}


def test_the_page_is_the_table() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "notation.md"
    assert page.read_text().strip() == markdown(), "run make docs"
