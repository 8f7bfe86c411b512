"""The Checkup record: what was recognised in a model, stream by stream, and what each verb can do with it."""

from dataclasses import dataclass, field

from depthscope.records import Record
from depthscope.traces.streams import ALONE

MODEL = "MODEL"  # where the user's own model stands in a command


@dataclass(frozen=True)
class Recognised:
    """One stream of a model, in words and numbers."""

    name: str
    depth: int
    blocks: str  # pattern of their paths
    how: str  # they were found
    stages: list[list[int]]  # tokens and width, of every stage in which they are the same
    layout: str  # (B, n, d)
    attention: str
    kinds: list[str]  # self, window, cross, mixing
    heads: int
    causal: bool | None
    norms: str
    final_norm: bool
    steps: list[str]
    padding: str
    fixes: dict[str, str]  # site -> yes, or why not
    forecast: str
    notes: list[str] = field(default_factory=list)

    @property
    def said(self) -> str:
        """The argument that names this stream alone; nothing where there is no other."""
        return "" if self.name == ALONE else f', stream="{self.name}"'

    @property
    def option(self) -> str:
        return "" if self.name == ALONE else f" --stream {self.name}"


@dataclass(frozen=True, eq=False)
class Checkup(Record):
    """What a look at a model found. settings: what else had to be said (blocks=, attention=False), in Python.

    problem: why a plain scan cannot be made, if so; seen: what is there instead of blocks; tried: lines, each with what
    came of it.
    """

    FORMAT = "depthscope.checkup"

    model: str
    streams: list[Recognised]
    remedies: list[str]  # in place
    settings: dict[str, str | bool] = field(default_factory=dict)
    problem: str = ""
    seen: list[str] = field(default_factory=list)
    tried: dict[str, str] = field(default_factory=dict)
    target: str = MODEL  # the model on the command line

    @property
    def recognised(self) -> bool:
        return bool(self.streams)

    def gist(self) -> str:
        found = ", ".join(f"{one.name} of {one.depth} blocks" for one in self.streams)
        return f"{self.model}: {found or self.problem or 'nothing recognised'}"

    def python(self, stream: Recognised) -> list[str]:
        """The lines that scan, fix and forecast one stream."""
        more = "".join(f", {name}={literal(value)}" for name, value in self.settings.items())
        where = "".join(f", {name}={literal(value)}" for name, value in self.settings.items() if name == "blocks")
        lines = [f"ds.scan(model, inputs{more}{stream.said})"]
        sites = [site for site, answer in stream.fixes.items() if answer == "yes"]
        if sites:
            at = "" if "block_out" in sites else f', at="{sites[0]}"'
            lines.append(f"ds.fix_(model, ds.remedies.DeEscalate(1.0){at}{where}{stream.said})")
        if stream.forecast.startswith("yes"):
            lines.append(f"ds.forecast(model, inputs{where}{stream.said})")
        return lines

    def commands(self, stream: Recognised) -> list[str]:
        """The same on the command line."""
        blocks = f" --blocks {literal(self.settings['blocks'])}" if "blocks" in self.settings else ""
        where = f"{self.target}{blocks}{stream.option}"
        bare = " --no-attention" if self.settings.get("attention") is False else ""
        lines = [f"depthscope scan {where}{bare}"]
        sites = [site for site, answer in stream.fixes.items() if answer == "yes"]
        if sites:
            at = "" if "block_out" in sites else f" --at {sites[0]}"
            lines.append(f"depthscope scan {where}{bare} --fix de_escalate{at}")
        if stream.forecast.startswith("yes"):
            lines.append(f"depthscope forecast {where}")
        return lines


def literal(value: str | bool) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
