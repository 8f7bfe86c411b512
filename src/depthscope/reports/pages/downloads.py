"""Files inside the page: tables as CSV, records as JSON, each in the address of its own link."""

import base64
import csv
import io
import re

from depthscope.records import Record, as_json
from depthscope.reports.story import Table, Value

LARGEST = 2_000_000  # bytes of a record that a page carries; the page stays below 5 MB
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


def json_link(record: Record) -> str | None:
    """None where the record is too large for a page."""
    text = as_json(record)
    return _link("application/json", text) if len(text) <= LARGEST else None


def png_link(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def _link(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"


def file_name(words: str, ending: str) -> str:
    """depthscope-all-blocks-before.csv"""
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60].strip("-")
    return f"depthscope-{plain or 'record'}.{ending}"
