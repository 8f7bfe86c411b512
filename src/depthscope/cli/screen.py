"""A record on a screen: what was found first, then the chart, then a screenful of rows, in tables that fit its width.

Reports tell a record in sheets of lines, charts and tables; here they are arranged, and nothing is computed.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from depthscope.records import Record
from depthscope.reports.rows import table
from depthscope.reports.sheet import Bars, Grid, Line, Part, Sheet, Words
from depthscope.reports.show import module_for
from depthscope.scans.record import Scan

ROWS = 16  # of a table
HEAD = 12  # of them from its beginning, the others from its end
LEGEND = 5  # lines of a legend that are shown unasked
HEADING = 60  # characters of a heading, at most
FRAME = 4  # columns that a frame takes


def on_screen(record: Any, width: int, *, verbose: bool) -> Any:
    """A rich renderable. verbose: all rows, every block of a scan, all legends."""
    from rich.console import Group

    if not has_sheets(record):
        return record.view()
    sheets = sheets_of(record)
    if verbose and isinstance(record, Scan):
        sheets = [_every_block(one, record) for one in sheets]
    elif isinstance(record, Scan) and record.before is not None:
        sheets = _side_by_side_first(sheets)
    elif isinstance(record, Scan) and len(table(record)[1]) <= record.depth:
        hint = Line(f"--verbose shows all {record.depth} blocks.", "dim")
        sheets = [replace(sheets[0], body=[*sheets[0].body, hint]), *sheets[1:]]
    return Group(*(arranged(one, width, verbose=verbose).view() for one in sheets))


def _side_by_side_first(sheets: list[Sheet]) -> list[Sheet]:
    """The tables of before and after on top; then both scans, whose own tables would say the same again."""
    both = [one for one in sheets if "before and after" in one.title]
    alone = [one for one in sheets if "before and after" not in one.title]
    hint = Line("--verbose shows the tables of each.", "dim")
    return [*both, *(replace(one, body=[*before_tables(one.body), hint]) for one in alone)]


def before_tables(body: Sequence[Part]) -> list[Part]:
    """All parts above the first table, and notes."""
    first = next((k for k, part in enumerate(body) if isinstance(part, Grid)), len(body))
    return [*body[:first], *(one for one in body[first:] if isinstance(one, Line) and one.style == "yellow")]


def in_short(record: Any) -> list[str]:
    """What was found and nothing else: a line or two for each sheet."""
    if not has_sheets(record):
        from rich.text import Text

        view = record.view()
        return view.plain.splitlines()[:1] if isinstance(view, Text) else [str(record).splitlines()[0]]
    return [line for sheet in sheets_of(record) for line in _gist(sheet)]


def _gist(sheet: Sheet) -> list[str]:
    """What was found, after the title where a sheet has a frame; where nothing is bold, all that is no header."""
    lines = [one for one in sheet.body if isinstance(one, Line)]
    found = [_plain(one) for one in leads(sheet.body) or [one for one in lines if one.style != "dim"]]
    return [line for line in found if line] if sheet.style is None else [f"{sheet.title}: {' '.join(found)}"]


def has_sheets(record: Any) -> bool:
    return hasattr(record, "sheets") or (isinstance(record, Record) and type(record).view is Record.view)


def sheets_of(record: Any) -> list[Sheet]:
    return record.sheets() if hasattr(record, "sheets") else module_for(record).sheets(record)


def arranged(sheet: Sheet, width: int, *, verbose: bool) -> Sheet:
    """The same sheet with what was found on top, long tables cut and wide ones in several bands."""
    inner = width if sheet.style is None else width - FRAME
    found = [] if sheet.style is None else leads(sheet.body)
    body: list[Part] = [*found]
    unsaid, tables = False, 0
    for part in sheet.body:
        if any(part is one for one in found):
            continue
        if isinstance(part, Grid):
            tables += 1
            body += bands(part, inner) if verbose else screenful(part, inner)
        elif tables and not verbose and _is_long_legend(part, inner):
            unsaid = True
        else:
            body.append(part)
    return replace(sheet, body=[*body, *([Line("--verbose says what the columns mean.", "dim")] if unsaid else [])])


def screenful(grid: Grid, width: int) -> list[Part]:
    """As many rows and columns as a screen has room for, and a line that says what is left out."""
    shown, *others = bands(cut(grid), width)
    left_out = [name for one in others for name in one.names[1:]]
    rows = len(grid.cells) - sum(row[0] != "..." for row in shown.cells)
    missing = [f"{rows} rows"] * (rows > 0) + [f"columns {', '.join(left_out)}"] * bool(left_out)
    hint = f"not shown: {'; '.join(missing)}. --verbose shows all."
    return [shown, *([Line(hint, "dim")] if missing else [])]


def leads(body: Sequence[Part]) -> list[Line]:
    """The bold lines that say what was found; a short one right above a chart or a table is its heading."""
    below: list[Part | None] = [*body[1:], None]
    bold = [(one, after) for one, after in zip(body, below, strict=True) if isinstance(one, Line) and _bold(one)]
    return [one for one, after in bold if not (isinstance(after, Bars | Grid) and len(_plain(one)) < HEADING)]


def _every_block(sheet: Sheet, scan: Scan) -> Sheet:
    """A sheet of a scan with every block in place of a few: the table that `table` gives, with its columns."""
    streams = [*scan.streams.values(), *(scan.before.streams.values() if scan.before else ())]
    whole = {_key(*table(one)): table(one, one.depth + 1) for one in streams}

    def full(part: Part) -> Part:
        if not isinstance(part, Grid):
            return part
        for key, (names, cells) in whole.items():
            chosen = [names.index(name) for name in part.names if name in names]
            if chosen and _key(part.names, part.cells) == tuple(tuple(row[i] for i in chosen) for row in key):
                return replace(part, cells=[[row[i] for i in chosen] for row in cells])
        return part

    return replace(sheet, body=[full(part) for part in sheet.body])


def _key(names: Sequence[str], cells: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return (tuple(names), *(tuple(row) for row in cells))


def cut(grid: Grid) -> Grid:
    """At most ROWS rows: the first, those that the table wants seen, and the last; dots for what is between."""
    count = len(grid.cells)
    if count <= ROWS:
        return grid
    tail = ROWS - HEAD - 1
    for head in range(HEAD, 0, -1):
        kept = sorted({*range(head), *grid.seen, *range(count - tail, count)})
        rows: list[int | None] = [0]
        for before, now in pairwise(kept):
            rows += [now] if now == before + 1 else [None, now]
        if len(rows) <= ROWS:
            break
    dots: list[Words] = ["...", *([""] * (len(grid.names) - 1))]
    styles = ["" if i is None else grid.styles[i] for i in rows] if grid.styles else ()
    return replace(grid, cells=[dots if i is None else grid.cells[i] for i in rows], styles=styles, seen=())


def bands(grid: Grid, width: int) -> list[Grid]:
    """The table in as many bands of columns as the width asks for, each with the first column; whole where it fits.

    A table whose columns may all take several lines (fold=None) is left as it is.
    """
    if grid.fold is None:
        return [grid]
    sizes = [_size(grid, k) + grid.gap for k in range(len(grid.names))]
    rows: list[list[int]] = [[0]]
    for k in range(1, len(grid.names)):
        if len(rows[-1]) > 1 and sum(sizes[i] for i in (*rows[-1], k)) - grid.gap > width:
            rows.append([0])
        rows[-1].append(k)
    if len(rows) == 1:
        return [grid]
    return [
        replace(grid, names=[grid.names[k] for k in chosen], cells=[[row[k] for k in chosen] for row in grid.cells])
        for chosen in rows
    ]


def _size(grid: Grid, column: int) -> int:
    """The columns of the screen that a column of the table needs."""
    from rich.cells import cell_len

    name = grid.names[column]
    if grid.fold and name in grid.fold:
        return grid.fold[name]
    cells = [row[column] for row in grid.cells]
    words = [one if isinstance(one, str) else one[0] for one in cells]
    return max(cell_len(line) for one in (name, *words) for line in (one.splitlines() or [""]))


def _bold(line: Line) -> bool:
    parts = [] if isinstance(line.words, str) else [one[1] for one in line.words if not isinstance(one, str)]
    return any("bold" in style.split() for style in (line.style, *parts[:1]))


def _plain(line: Line) -> str:
    return line.view().plain


def _is_long_legend(part: Part, width: int) -> bool:
    return isinstance(part, Line) and part.style == "dim" and len(_plain(part)) > LEGEND * width
