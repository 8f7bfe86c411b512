"""The story of any record: its sheets in the order of the chapters, and every list or table of numbers as a chart."""

from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from depthscope.records import Record
from depthscope.reports.sheet import Curves, Grid, Line, Sheet, bare
from depthscope.reports.show import module_for
from depthscope.reports.story import PALETTE, Chart, Facts, Heat, Part, Story, Table, Tone, Words, curve

TONES: dict[str, Tone] = {"green": "good", "yellow": "warn", "red": "bad", "bold red": "bad"}
MOST = 8  # charts of fields


def story(record: Record) -> Story:
    """Bold lines are the verdict, dim ones and notes how it was measured, tables the evidence."""
    sheets: list[Sheet] = module_for(record).sheets(record)
    told: dict[str, list[Part]] = {name: [] for name in ("verdict", "where", "why", "evidence", "how")}
    for sheet in sheets:
        before = ""
        for part in sheet.body:
            if isinstance(part, Line):
                _line(part, told)
                before = part.text or before
            elif isinstance(part, Grid):
                told["evidence"].append(table_of(part, before if _is_heading(before) else sheet.title))
            elif isinstance(part, Curves):
                told["where"].append(chart_of(part))
    charts = charts_of_fields(record)
    told["why"] = [one for one in charts if isinstance(one, Heat)] if told["where"] else []
    told["where"] = told["where"] or [*charts]
    if not told["verdict"]:
        told["verdict"] = [Words(record.gist(), "lead")]
    told["how"].append(Facts({"record": f"{record.FORMAT}, version {record.VERSION}"}))
    name = type(record).__name__.lower()
    tone = TONES.get(sheets[0].style or "", "plain")
    chapters: dict[str, Any] = {**told}
    return Story(name, sheets[0].title, {name: record}, tone=tone, **chapters)


def _is_heading(words: str) -> bool:
    return 0 < len(words) < 70 and not words.endswith(".")


def _line(line: Line, told: dict[str, list[Part]]) -> None:
    said = line.text.strip()
    if not said:
        return
    if line.style == "yellow" or said.startswith("note: "):
        told["how"].append(Words(said.removeprefix("note: "), "note"))
    elif line.style == "dim":
        told["how"].append(Words(said, "small"))
    else:
        tone = TONES.get(line.style, "plain")
        told["verdict"].append(Words(said, "text" if told["verdict"] else "lead", tone=tone))


def table_of(grid: Grid, caption: str) -> Table:
    """Words of the terminal, those that are numbers as numbers."""
    rows = [[value_of(bare(cell)) for cell in row] for row in grid.cells]
    tones = [TONES.get(style, "plain") for style in grid.styles]
    return Table(caption.rstrip(":"), grid.names, rows, left=grid.left, tones=tones)


def value_of(cell: str) -> float | int | str:
    """A cell as a number, where it is one."""
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def chart_of(curves: Curves) -> Chart:
    traces = [curve(name, values, colour=i % PALETTE) for i, (name, values) in enumerate(curves.series.items())]
    return Chart(curves.label, traces)


def charts_of_fields(record: Any, within: str = "") -> list[Chart | Heat]:
    """A curve for every field that is a list of numbers, a heat map for every table of them."""
    found: list[Chart | Heat] = []
    for f in fields(record):
        value, name = getattr(record, f.name), f"{within}{f.name}".replace("_", " ")
        if isinstance(value, Tensor) and value.is_complex():
            value = value.abs()
        if isinstance(value, Tensor) and value.dim() == 1 and len(value) > 1:
            found.append(Chart(name, [curve(name, value.tolist())], x="index", y=name))
        elif isinstance(value, Tensor) and value.dim() == 2 and value.numel() > 1:
            found.append(_map(name, value))
        elif isinstance(value, dict):
            found += _charts_of_dict(value, name)
        elif is_dataclass(value) and not isinstance(value, Record):
            found += charts_of_fields(value, f"{name}: ")
    return found[:MOST]


def _map(name: str, values: Tensor) -> Heat:
    """Rows to the right: they are what came one after another."""
    rows, columns = values.shape
    return Heat(name, values.T.tolist(), range(columns), range(rows), x="row", y="column")


def _charts_of_dict(values: dict[Any, Any], name: str) -> list[Chart | Heat]:
    """Lists of one length under names are curves of one chart; tables are heat maps."""
    real = {str(k): v for k, v in values.items() if isinstance(v, Tensor) and not v.is_complex()}
    maps: list[Chart | Heat] = [_map(f"{name}: {key}", v) for key, v in real.items() if v.dim() == 2 and v.numel() > 1]
    by_length: dict[int, dict[str, list[float]]] = {}
    for key, value in real.items():
        if value.dim() == 1 and len(value) > 1:
            by_length.setdefault(len(value), {})[key] = value.tolist()
    lines = [
        Chart(name, [curve(key, one, colour=i % PALETTE) for i, (key, one) in enumerate(some.items())], x="index")
        for some in by_length.values()
    ]
    return [*lines, *maps]
