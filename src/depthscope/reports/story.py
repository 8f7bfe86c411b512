"""A story: what a page tells of records, in chapters of words, charts, tables and lines of code.

It knows no HTML and no charting library: pages/ writes it as one file, a notebook shows its first chart as a picture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from depthscope.records import Record

CHAPTERS = {
    "verdict": "Verdict",
    "where": "Where it happens",
    "why": "Why",
    "todo": "What to do",
    "evidence": "Evidence",
    "how": "How it was measured",
}
Tone = Literal["good", "warn", "bad", "plain"]
Value = float | int | str
PALETTE = 8  # colours of a page; curves beyond it begin again


@dataclass(frozen=True)
class Words:
    """A paragraph. kind: lead is the sentence to read first, note a warning to mind, small an explanation."""

    said: str
    kind: Literal["text", "lead", "note", "small"] = "text"
    badge: str = ""
    tone: Tone = "plain"
    label: str = ""  # of whom it is said, where a page tells of several


@dataclass(frozen=True)
class Trace:
    """One curve, or one kind of bars. band: its lower and its upper edge. colour: a place in the palette; curves that
    belong together share it. hidden: drawn when asked for in the legend."""

    name: str
    y: Sequence[float]
    x: Sequence[Value] = ()
    line: Literal["solid", "dash", "dot", "points"] = "solid"
    band: tuple[Sequence[float], Sequence[float]] | None = None
    colour: int = 0
    hidden: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over x, or bars that are stacked. log: the scale of y at first; switch: whether it can be changed.
    marks: horizontal lines with their names. low, high: of a linear y axis; NaN where the data decide."""

    title: str
    traces: Sequence[Trace]
    says: str = ""
    x: str = "block"
    y: str = ""
    log: bool = False
    switch: bool = True
    bars: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Heat:
    """A table of numbers as colours: values (rows, columns). middle: the value between two opposite colours, NaN where
    colours go from little to much."""

    title: str
    values: Sequence[Sequence[float]]
    rows: Sequence[Value]
    columns: Sequence[Value]
    says: str = ""
    x: str = "block"
    y: str = "head"
    unit: str = ""
    low: float = math.nan
    high: float = math.nan
    middle: float = math.nan


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers; numbers are sorted and downloaded as they are. left: columns of words. tones: of the
    rows. about: what the columns mean."""

    caption: str
    names: Sequence[str]
    rows: Sequence[Sequence[Value]]
    left: int = 0
    tones: Sequence[Tone] = ()
    about: str = ""


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    facts: Mapping[str, str]


@dataclass(frozen=True)
class Code:
    """A line to copy, and what it does."""

    said: str
    line: str


@dataclass(frozen=True)
class Picture:
    """A figure as it is printed in a paper: a PNG. says: what it shows, for those who do not see it too."""

    title: str
    png: bytes
    says: str


Part = Words | Chart | Heat | Table | Facts | Code | Picture


@dataclass(frozen=True)
class Story:
    """What is told of some records. kind: what they are, in a word or two; status and tone: the verdict in a word."""

    kind: str
    title: str
    records: Mapping[str, Record]  # by the names of their downloads
    verdict: Sequence[Part]
    where: Sequence[Part] = ()
    why: Sequence[Part] = ()
    todo: Sequence[Part] = ()
    evidence: Sequence[Part] = ()
    how: Sequence[Part] = ()
    status: str = ""
    tone: Tone = "plain"

    @property
    def chapters(self) -> dict[str, Sequence[Part]]:
        """Those that have something to tell, by their names in CHAPTERS. Evidence always has: the record itself."""
        return {name: getattr(self, name) for name in CHAPTERS if getattr(self, name) or name == "evidence"}

    @property
    def charts(self) -> list[Chart | Heat]:
        return [part for parts in self.chapters.values() for part in parts if isinstance(part, Chart | Heat)]


def notes(said: Sequence[str]) -> list[Words]:
    return [Words(one, "note") for one in said]


def curve(name: str, values: Sequence[float], first: int = 0, **style: object) -> Trace:
    """A trace over blocks: values of states begin at block 0, those of steps and heads at block 1."""
    return Trace(name, list(values), range(first, first + len(values)), **style)  # type: ignore[arg-type]
