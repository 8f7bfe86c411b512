"""A sheet: what is told about a record, as lines, tables and curves; written once, shown in a terminal and as HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from textwrap import fill
from typing import Any

from depthscope.reports.chart import bars, svg_lines

Words = str | tuple[str, str]  # with a style of rich: bold, dim, red, "bold red"
MARKDOWN = 98  # characters of a line
COLOURS = {"red": "#c0392b", "green": "#1e8449", "yellow": "#b7950b", "blue": "#2471a3"}


@dataclass(frozen=True)
class Line:
    """A paragraph: words one after another, each with a style of its own or the one of the line."""

    words: Words | Sequence[Words]
    style: str = ""

    def view(self) -> Any:
        from rich.text import Text

        return Text.assemble(*self._parts(), style=self.style)

    def html(self) -> str:
        named = {"dim": ' class="dim"', "yellow": ' class="ds-note"'}.get(self.style, "")
        inside = "".join(_inline(*((one, "") if isinstance(one, str) else one)) for one in self._parts())
        return f"<p{named}>{inside if named else _styled(inside, self.style)}</p>"

    def markdown(self) -> str:
        said = "".join(map(_bare, self._parts()))
        said = f"**{said}**" if self.style == "bold" and said else said
        return fill(said, MARKDOWN, break_long_words=False, break_on_hyphens=False)

    def _parts(self) -> Sequence[Words]:
        return [self.words] if isinstance(self.words, str) else self.words


@dataclass(frozen=True)
class Grid:
    """A table. gap: spaces between columns. left: how many columns are set to the left. fold: columns that may take
    several lines, with their least width; with fold=None all may. styles: of the rows."""

    names: Sequence[str]
    cells: Sequence[Sequence[Words]]
    gap: int = 2
    left: int = 0
    fold: Mapping[str, int] | None = field(default_factory=dict)
    styles: Sequence[str] = ()

    def view(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False, padding=(0, self.gap, 0, 0), header_style="bold")
        for index, name in enumerate(self.names):
            side: Any = "left" if index < self.left or not name else "right"
            if self.fold and name in self.fold:
                grid.add_column(Text(name), overflow="fold", min_width=self.fold[name])
            else:
                grid.add_column(Text(name), justify=side, no_wrap=self.fold is not None)
        for row, style in zip(self.cells, self.styles or [""] * len(self.cells), strict=True):
            grid.add_row(*(Text(one) if isinstance(one, str) else Text(*one) for one in row), style=style or None)
        return grid

    def html(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.names)
        rows = [
            "".join(f"<td>{_inline(*((one, '') if isinstance(one, str) else one))}</td>" for one in row)
            for row in self.cells
        ]
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def markdown(self) -> str:
        rules = ["---" if i < self.left else "--:" for i in range(len(self.names))]
        rows = [[_bare(one).replace("|", r"\|") for one in row] for row in self.cells]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.names, rules, *rows))


@dataclass(frozen=True)
class Bars:
    """A chart of values in [0, 1] for the terminal; pages have Curves."""

    values: Sequence[float]
    style: str = ""

    def view(self) -> Any:
        from rich.text import Text

        return Text("\n".join(bars(self.values)), style=self.style, no_wrap=True)

    def html(self) -> str:
        return ""

    def markdown(self) -> str:
        return ""


@dataclass(frozen=True)
class Curves:
    """Values in [0, 1] over the block index for a page; terminals have Bars."""

    series: Mapping[str, Sequence[float]]
    label: str
    width: int = 560
    height: int = 200

    def view(self) -> None:
        return None

    def html(self) -> str:
        return svg_lines(self.series, width=self.width, height=self.height, label=self.label)

    def markdown(self) -> str:
        return ""


Part = Line | Grid | Bars | Curves


@dataclass(frozen=True)
class Sheet:
    """A title and what is told below it. style: of the frame; None where there is no frame."""

    title: str
    body: Sequence[Part]
    style: str | None = "none"

    def view(self) -> Any:
        """A rich renderable."""
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        inside = Group(*(shown for one in self.body if (shown := one.view()) is not None))
        if self.style is None:
            return inside
        return Panel(inside, title=Text(self.title), title_align="left", border_style=self.style)

    def html(self) -> str:
        """A fragment without outside references."""
        return f'<div class="ds-scan"><h3>{escape(self.title)}</h3>{"".join(one.html() for one in self.body)}</div>'

    def markdown(self) -> str:
        """A section of a page."""
        return "\n\n".join([f"## {self.title}", *(told for one in self.body if (told := one.markdown()))]) + "\n"


def notes(words: Sequence[str]) -> list[Line]:
    return [Line(f"note: {one}", "yellow") for one in words]


def _bare(words: Words) -> str:
    return words if isinstance(words, str) else words[0]


def _inline(words: str, style: str) -> str:
    return _styled(escape(words), style)


def _styled(inside: str, style: str) -> str:
    """The inside of an element in a style of rich."""
    colour = next((COLOURS[word] for word in style.split() if word in COLOURS), None)
    coloured = f' style="color:{colour}"' if colour else ""
    if "bold" in style.split():
        return f"<b{coloured}>{inside}</b>"
    return f"<span{coloured}>{inside}</span>" if colour else inside
