"""Files inside the page: tables as CSV, records as JSON, each in the address of its own link."""

import base64
import csv
import io
import json
import re
from collections.abc import Iterable

from depthscope.records import Record, plain
from depthscope.reports.story import Table, Value

LARGEST = 2_500_000  # bytes of all records that a page carries; the page stays below 5 MB
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a cell that begins with one of these


def csv_text(table: Table) -> str:
    """Numbers with all their digits; a word that a spreadsheet would compute gets an apostrophe in front."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in (table.names, *table.rows))
    return file.getvalue()


def _cell(value: Value) -> str:
    if not isinstance(value, str):
        return repr(value)
    return f"'{value}" if value.startswith(FORMULA) and not _is_number(value) else value


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def csv_link(table: Table) -> str:
    return _link("text/csv;charset=utf-8", csv_text(table))


def json_links(records: Iterable[Record]) -> list[str]:
    """One for each record, in their order; "" for one that is too large beside those before it."""
    found, left = [], LARGEST
    for record in records:
        link = _link("application/json", json.dumps(plain(record), allow_nan=False, separators=(",", ":")))
        found.append(link if len(link) <= left else "")
        left -= len(found[-1])
    return found


def png_link(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _link(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def file_name(words: str, ending: str) -> str:
    """depthscope-all-blocks-before.csv"""
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60].strip("-")
    return f"depthscope-{plain or 'record'}.{ending}"
