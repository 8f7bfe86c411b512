"""The Gate record: what was asked of a model, which of it holds, and what a reader needs where it does not."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from depthscope.gates.demands import Demands
from depthscope.records import Record
from depthscope.traces.streams import ALONE


@dataclass(frozen=True)
class Check:
    """One demand on one stream, whether it holds, and one sentence that says why."""

    name: str  # finite, verdict, diversity, regression
    stream: str
    holds: bool
    says: str

    @property
    def title(self) -> str:
        """The name, with the stream where a model has several."""
        return self.name if self.stream == ALONE else f"{self.stream}: {self.name}"


@dataclass(frozen=True, eq=False)
class Judged:
    """What was found in one stream. diversity: the share of the signal that differs between tokens, of each state,
    without what hides it (massive tokens, outliers, shared channels); before: the same in the scan it is held against.
    """

    stream: str
    status: str
    block: int | None
    driver: str
    text: str
    advice: str
    diversity: Tensor  # (depth + 1,)
    before: Tensor | None  # (depth + 1,)


@dataclass(frozen=True, eq=False)
class Gate(Record):
    """Whether a model passes.

    Attributes:
        asked: The demands that were made.
        notes: What may make a comparison unreliable.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> gate = ds.gate(ds.scan(model, X), min_diversity=0.01)
        >>> gate.passed, len(gate.checks)
        (True, 3)
    """

    FORMAT = "depthscope.gate"

    model: str
    against: str | None
    depth: int
    checks: list[Check]
    streams: list[Judged]
    asked: Demands
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.holds]

    def __bool__(self) -> bool:
        """assert ds.gate(scan): a gate that fails is false."""
        return self.passed

    def derived(self) -> dict[str, Any]:
        return {"passed": self.passed}

    def view(self) -> Any:
        from rich.text import Text

        from depthscope.gates.words import lines

        return Text("\n").join(Text(words, style=style) for words, style in lines(self))
