"""A sheet: what is told about a record, as lines, tables and curves; for a terminal, as Markdown, and as a page where
a kind of record has no story of its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

from depthscope.reports.chart import bars

Words = str | tuple[str, str]  # with a style of rich: bold, dim, red, "bold red"
MARKDOWN = 98  # characters of a line
TAG = re.compile("<(?=[a-zA-Z/!?])")  # as HTML begins, which Markdown lets through
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Line:
    """A paragraph: words one after another, each with a style of its own or the one of the line."""

    words: Words | Sequence[Words]
    style: str = ""

    def view(self) -> Any:
        from rich.text import Text

        return Text.assemble(*self._parts(), style=self.style)

    @property
    def text(self) -> str:
        return "".join(map(bare, self._parts()))

    def markdown(self) -> str:
        said = self.text
        said = f"**{said}**" if self.style == "bold" and said else said
        return fill(said, MARKDOWN, break_long_words=False, break_on_hyphens=False)

    def _parts(self) -> Sequence[Words]:
        words: Sequence[Words] = [self.words] if isinstance(self.words, str) else self.words
        return [printable(one) for one in words]


@dataclass(frozen=True)
class Grid:
    """A table. gap: spaces between columns. left: how many columns are set to the left. fold: columns that may take
    several lines, with their least width; with fold=None all may. styles: of the rows. seen: rows that are shown even
    where there is no room for all."""

    names: Sequence[str]
    cells: Sequence[Sequence[Words]]
    gap: int = 2
    left: int = 0
    fold: Mapping[str, int] | None = field(default_factory=dict)
    styles: Sequence[str] = ()
    seen: Sequence[int] = ()

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
            told = [printable(one) for one in row]
            grid.add_row(*(Text(one) if isinstance(one, str) else Text(*one) for one in told), style=style or None)
        return grid

    def markdown(self) -> str:
        rules = ["---" if i < self.left else "--:" for i in range(len(self.names))]
        rows = [[bare(one).replace("|", r"\|") for one in row] for row in self.cells]
        return "\n".join(f"| {' | '.join(row)} |" for row in (self.names, rules, *rows))


@dataclass(frozen=True)
class Bars:
    """A chart of values in [0, 1] for the terminal; pages have Curves."""

    values: Sequence[float]
    style: str = ""

    def view(self) -> Any:
        from rich.text import Text

        return Text("\n".join(bars(self.values)), style=self.style, no_wrap=True)

    def markdown(self) -> str:
        return ""


@dataclass(frozen=True)
class Curves:
    """Values over the block index for a page; terminals have Bars."""

    series: Mapping[str, Sequence[float]]
    label: str

    def view(self) -> None:
        return None

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
        return Panel(inside, title=Text(str(printable(self.title))), title_align="left", border_style=self.style)

    def markdown(self) -> str:
        """A section of a page, in which a model may be called anything."""
        section = "\n\n".join([f"## {self.title}", *(told for one in self.body if (told := one.markdown()))]) + "\n"
        return TAG.sub(r"\\<", UNPRINTABLE.sub("?", section))


def notes(words: Sequence[str]) -> list[Line]:
    return [Line(f"note: {one}", "yellow") for one in words]


def printable(words: Words) -> Words:
    """Without characters that a terminal would obey, and halves of characters: a model may be called anything."""
    return UNPRINTABLE.sub("?", words) if isinstance(words, str) else (UNPRINTABLE.sub("?", words[0]), words[1])


def bare(words: Words) -> str:
    """Without its style."""
    return words if isinstance(words, str) else words[0]
