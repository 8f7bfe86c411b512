"""The Forecast record: the curve that is expected, and what follows from it."""

import json
import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depthscope.errors import RecordError, UsageError
from depthscope.files import whole_file
from depthscope.theory.depth import critical_tau

FORMAT, VERSION = "depthscope.forecast", 1


@dataclass(frozen=True, eq=False)
class Forecast:
    """Token similarity, diversity and cosine before block 1 and after every block, (depth + 1,) each.

    source: what was forecast. assumed: what the forecast takes for granted, in words. measured: how many of the first
    blocks are not forecast but measured (of a scan). band: between which values t_sim lies in nine cases of ten, (2,
    depth + 1). gradient_growth: |dL/dX_{l-1}| / |dL/dX_l| of every block, (depth,). None where there is no theory.
    """

    source: str
    n: int
    t_sim: Tensor
    t_div: Tensor
    t_cos: Tensor
    assumed: list[str] = field(default_factory=list)
    measured: int = 0
    band: Tensor | None = None
    gradient_growth: Tensor | None = None
    tau: float = 0.0  # de-escalation that is in it

    @property
    def depth(self) -> int:
        return len(self.t_sim) - 1

    @property
    def growth(self) -> Tensor:
        """What every block multiplies the odds t_sim / t_div by, (depth,); the gain of theory/depth.py."""
        odds = self.t_sim / self.t_div
        return odds[1:] / odds[:-1]

    @property
    def gain(self) -> float:
        """The growth of a block in the end: the geometric mean over the last quarter that is no rounding noise."""
        usable = (self.t_div[1:] > 1e-12) & (self.t_sim[1:] > 1e-12) & self.growth.isfinite()
        logs = self.growth[usable].log()
        return math.exp(float(logs[-max(1, len(logs) // 4) :].mean())) if len(logs) else 1.0

    def collapse_depth(self, threshold: float = 0.99) -> float:
        """After how many blocks t_sim passes the threshold; inf when it does not within this depth."""
        if not 0 < threshold < 1:
            raise UsageError(f"collapse_depth: threshold must lie in (0, 1); got {threshold}.")
        above = (self.t_sim >= threshold).nonzero()
        if not len(above):
            return math.inf
        block = int(above[0])
        if block == 0:
            return 0.0
        a, b = (math.log(float(self.t_sim[i]) / max(float(self.t_div[i]), 1e-300)) for i in (block - 1, block))
        goal = math.log(threshold / (1 - threshold))
        return block - 1 + (goal - a) / (b - a)

    @property
    def critical_tau(self) -> float:
        """The least tau at block_out that stops this growth: 1 - 1 / sqrt(gain), beside what is there already."""
        further = float(critical_tau(max(self.gain, 1e-12)))
        return 1 - (1 - self.tau) * (1 - further)

    def to_dict(self) -> dict[str, Any]:
        curves = {name: getattr(self, name).tolist() for name in ("t_sim", "t_div", "t_cos")}
        return {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "n": self.n,
            **curves,
            "assumed": self.assumed,
            "measured": self.measured,
            "tau": self.tau,
            "band": None if self.band is None else self.band.tolist(),
            "gradient_growth": None if self.gradient_growth is None else self.gradient_growth.tolist(),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Forecast":
        got = (data.get("format"), data.get("version")) if isinstance(data, dict) else (type(data).__name__, None)
        if got != (FORMAT, VERSION):
            raise RecordError(
                f"Forecast: a record must be a {FORMAT} of version {VERSION}; got {got[0]!r}, {got[1]!r}. Was it saved "
                "by Forecast.save?"
            )
        missing = [f.name for f in fields(cls) if f.name not in data]
        if missing:
            raise RecordError(f"Forecast: a record must have all its fields; missing: {', '.join(missing)}.")
        names = ("t_sim", "t_div", "t_cos", "band", "gradient_growth")
        found: dict[str, Any] = {
            k: None if data[k] is None else torch.tensor(data[k], dtype=torch.float64) for k in names
        }
        return cls(
            data["source"],
            data["n"],
            assumed=list(data["assumed"]),
            measured=data["measured"],
            tau=data["tau"],
            **found,
        )

    def save(self, path: str | Path) -> None:
        with whole_file(path) as part:
            part.write_text(json.dumps(self.to_dict(), indent=1))

    @classmethod
    def load(cls, path: str | Path) -> "Forecast":
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"Forecast.load: {str(path)!r} must be JSON written by save(); {error}.") from None
        return cls.from_dict(data)

    def __str__(self) -> str:
        from depthscope.reports.forecasts import forecast_text

        return forecast_text(self)
