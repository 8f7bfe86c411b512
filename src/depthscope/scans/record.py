"""The Scan record: numbers per state, step and head, with a verdict; saved as JSON and read back."""

import json
import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import MissingExtraError, RecordError, UnknownNameError
from depthscope.files import whole_file
from depthscope.registry import TABLES, unknown
from depthscope.scans.verdict import Verdict, judge

FORMAT = "depthscope.scan"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Scan:
    """What was measured. State 0 is the input of block 1, state l the output of block l.

    scan["t_sim"]: depth + 1 values for a state metric, depth values for a step or attention metric (steps: the whole
    block; attention: the mean over heads), a tuple for a pair such as "xi". per_step() and per_head() have the rest.
    """

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
    residuals: dict[str, float]  # largest relative residual of the iterated head statistics
    without_dropout: Tensor | None  # t_div of the states with dropout silenced, when it was on
    remedies: list[str]  # put in by fix_
    broken: tuple[int, str] | None  # block and step of the first NaN or infinity
    notes: list[str] = field(default_factory=list)

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: tensors are lists, numbers that are not finite are words."""
        record = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {"format": FORMAT, "version": VERSION, **record, "verdict": _plain(self.verdict.to_dict())}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Scan":
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            got = record.get("format") if isinstance(record, dict) else type(record).__name__
            raise RecordError(f"Scan: a record must say format {FORMAT!r}; got {got!r}. Save it with scan.save().")
        if record.get("version") != VERSION:
            raise RecordError(
                f"Scan: this depthscope reads format version {VERSION}; got {record.get('version')}. "
                "Use the depthscope that wrote it."
            )
        missing = [f.name for f in fields(cls) if f.name not in record]
        if missing:
            raise RecordError(
                f"Scan: a record must have all its fields; missing: {', '.join(missing)}. The file is not whole."
            )
        values = {f.name: record[f.name] for f in fields(cls)}
        for name in ("states", "spread", "heads", "gradients"):
            values[name] = {k: _tensor(v) for k, v in values[name].items()}
        values["steps"] = {step: {k: _tensor(v) for k, v in row.items()} for step, row in values["steps"].items()}
        for name in ("final_norm", "residuals"):
            values[name] = {k: float(v) for k, v in values[name].items()}
        values["residual_scale"] = float(values["residual_scale"])
        values["without_dropout"] = None if values["without_dropout"] is None else _tensor(values["without_dropout"])
        values["broken"] = None if values["broken"] is None else tuple(values["broken"])
        return cls(**values)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON: the whole file or none."""
        with whole_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False))

    @classmethod
    def load(cls, path: str | Path) -> "Scan":
        try:
            record = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise RecordError(f"Scan.load: the file must exist; {str(path)!r} does not. Check the path.") from None
        except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
            raise RecordError(f"Scan.load: {str(path)!r} must be JSON written by scan.save(); {error}.") from None
        try:
            return cls.from_dict(record)
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(f"Scan.load: {str(path)!r} must hold numbers; {error}. The file is damaged.") from None

    def to_pandas(self) -> Any:
        """One row for each state (index 0 .. depth); step and head quantities stand at the block that made them."""
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("to_pandas: needs pandas. pip install 'depthscope[plot]'") from None
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

    def __str__(self) -> str:
        from depthscope.reports.text import scan_text

        return scan_text(self)

    def _repr_html_(self) -> str:
        from depthscope.reports.html import scan_html

        return scan_html(self)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _tensor(value: Any) -> Tensor:
    """Nested lists to float64; "nan" and "inf" are words in JSON."""

    def numbers(v: Any) -> Any:
        return [numbers(x) for x in v] if isinstance(v, list) else float(v)

    return torch.tensor(numbers(value), dtype=torch.float64)
