"""The Scan record: numbers per state, step and head, with a verdict; saved as JSON and read back."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import MissingExtraError, RecordError, UnknownNameError
from depthscope.extras import install
from depthscope.records import FORMATS, Record, apart, since
from depthscope.registry import TABLES, unknown
from depthscope.scans.exceptions import Massive
from depthscope.scans.fitting import check_fit
from depthscope.scans.verdict import judge
from depthscope.scans.verdict_record import Verdict
from depthscope.traces.streams import ALONE

PAIR = "depthscope.scans"  # the format of a scan with `before`
JUDGED = (  # kept per sequence
    "t_div",
    "t_div_rest",
    "t_div_core",
    "same_share",
    "difference_rank",
    "difference_size",
    "few_points",
)


@dataclass(frozen=True, eq=False)
class Scan(Record):
    """What was measured. State 0 is the input of block 1; state l is the output of block l.

    scan["t_sim"] has depth + 1 values for a metric of states, and depth values for a metric of steps (whole blocks) or
    of attention (the mean over heads); it is a tuple for a pair such as "xi". per_step() has the steps inside blocks,
    and per_head() the single heads. before: a scan of the same model without the remedy, shown and saved with this one.

    Examples:
        >>> model, X = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> scan = ds.scan(model, X)
        >>> scan["t_sim"].shape, scan["delta"].shape, scan.per_head("delta").shape
        (torch.Size([3]), torch.Size([2]), torch.Size([2, 2]))
    """

    FORMAT = "depthscope.scan"
    VERSION = 4  # 1 had means over sequences alone, 2 one stream, 3 no errors over batches

    model: str
    depth: int
    tokens: int  # positions of the first batch
    valid_tokens: float  # that are no padding, mean over sequences
    width: int
    samples: int
    dtype: str
    training: bool
    blocks: str  # pattern of the blocks' paths
    block_names: list[str]
    placement: str  # of the norms: post, pre, sandwich, branch, none, mixed: ..., unknown
    residual_scale: float  # above 1 as in DeepNorm
    causal: bool | None
    token_axis: int
    states: dict[str, Tensor]  # (depth + 1,)
    spread: dict[str, Tensor]  # standard deviation over samples, (depth + 1,)
    steps: dict[str, dict[str, Tensor]]  # step -> quantity -> (depth,); "block" is the whole block
    heads: dict[str, Tensor]  # (depth, h), NaN beyond a block's own heads
    head_counts: list[int]  # heads of each block, 0 where no attention was seen
    final_norm: dict[str, float]
    gradients: dict[str, Tensor]
    residuals: dict[str, float]  # largest relative error of the head statistics that have one
    without_dropout: Tensor | None  # t_div of the states with dropout silenced, when it was on
    remedies: list[str]  # put in by fix_
    broken: tuple[int, str] | None  # block and step of the first NaN or infinity
    notes: list[str] = field(default_factory=list)
    sequences: dict[str, Tensor] = since(2, default_factory=dict)  # (depth + 1, samples), dropout silenced
    massive: list[Massive] = since(2, default_factory=list)  # tokens, dropout silenced
    vanished: dict[str, float] = since(2, default_factory=dict)  # path -> what it is given, as a share of the tokens
    stream: str = since(3, default=ALONE)  # the name of the stream among those of the model
    others: "dict[str, Scan]" = since(3, default_factory=dict)  # the other streams
    sizes: list[list[int]] = since(3, default_factory=list)  # tokens and width of every state, where they change
    batches: int = since(4, default=1)  # over which the means were taken
    errors: dict[str, Tensor] = since(4, default_factory=dict)  # standard errors over batches, shaped as scan[name]
    before: "Scan | None" = apart(default=None)

    @property
    def streams(self) -> "dict[str, Scan]":
        """All streams of the model by their names, this one first."""
        return {self.stream: self, **self.others}

    @cached_property
    def verdict(self) -> Verdict:
        """Diverse, escalating, collapsed, at the numerical floor, or not a number; with the reason."""
        return judge(self)

    @property
    def title(self) -> str:
        """The model's class, with the remedies that are in it."""
        return " + ".join([self.model, *self.remedies])

    @property
    def step_names(self) -> list[str]:
        return [name for name in self.steps if name != "block"]

    def __getitem__(self, name: str) -> Any:
        for table in (self.states, self.steps["block"], self.gradients):
            if name in table:
                return table[name]
        if name in self.heads:
            rows = zip(self.heads[name], self.head_counts, strict=True)
            return torch.stack([row[:count].mean() for row, count in rows])
        parts: tuple[str, ...] = TABLES["metric"][name].facts.parts if name in TABLES["metric"] else ()
        if len(parts) > 1 and (parts[0] in self.steps["block"] or parts[0] in self.heads):
            return tuple(self[part] for part in parts)
        if parts:
            raise UnknownNameError(
                f"scan: {name!r} was not measured. Pass metrics=[{name!r}] (and attention=True for heads) to ds.scan."
            )
        raise UnknownNameError("scan: " + unknown("quantity", name, self.keys()))

    def keys(self) -> list[str]:
        """The quantities that scan[...] knows."""
        return [*self.states, *self.steps["block"], *self.heads, *self.gradients]

    def per_head(self, name: str) -> Tensor:
        """An attention quantity (depth, h), mean over samples."""
        if name not in self.heads:
            raise UnknownNameError("scan: " + unknown("head quantity", name, self.heads))
        return self.heads[name]

    def per_step(self, name: str) -> dict[str, Tensor]:
        """A step quantity for every step inside the blocks, (depth,) each."""
        if name not in self.steps["block"]:
            raise UnknownNameError("scan: " + unknown("step quantity", name, self.steps["block"]))
        return {step: self.steps[step][name] for step in self.step_names}

    def gist(self) -> str:
        """What was scanned, and the verdict in a few words."""
        stream = "" if self.stream == ALONE else f", {self.stream}"
        more = f" and {len(self.others)} more streams" if self.others else ""
        was = f"{self.before.verdict.gist()} -> " if self.before is not None else ""
        return f"{self.title}{stream}, {self.depth} blocks{more}: {was}{self.verdict.gist()}"

    def derived(self) -> dict[str, Any]:
        return {"verdict": self.verdict}

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; with `before` a pair of scans."""
        if self.before is None:
            return super().to_dict()
        after = replace(self, before=None)
        return {"format": PAIR, "version": 1, "before": self.before.to_dict(), "after": after.to_dict()}

    @classmethod
    def from_dict(cls, record: Any) -> "Scan":
        if not isinstance(record, dict) or record.get("format") != PAIR:
            found = super().from_dict(record)
            check_fit(found)
            return found
        if record.get("version") != 1 or not {"before", "after"} <= {*record}:
            got = f"version {record.get('version')!r} with {', '.join(record)}"
            raise RecordError(
                f"Scan: two scans must be of version 1, before and after; got {got}. The file is damaged."
            )
        return replace(cls.from_dict(record["after"]), before=cls.from_dict(record["before"]))

    def to_pandas(self) -> Any:
        """One row for each state (index 0 .. depth); step and head quantities stand at the block that made them."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError(f"to_pandas: needs pandas. {install('plot')}") from None
        first = torch.tensor([math.nan], dtype=torch.float64)
        columns = dict(self.states)
        for step, row in self.steps.items():
            suffix = "" if step == "block" else f"[{step}]"
            for name, values in row.items():
                if step != "block" or name not in columns:
                    columns[name + suffix] = torch.cat([first, values])
        columns |= {name: torch.cat([first, self[name]]) for name in self.heads}
        columns |= {
            name: values if len(values) > self.depth else torch.cat([first, values])
            for name, values in self.gradients.items()
        }
        frame = pandas.DataFrame({name: values.numpy() for name, values in columns.items()})
        frame.index.name = "block"
        return frame


FORMATS[PAIR] = Scan
