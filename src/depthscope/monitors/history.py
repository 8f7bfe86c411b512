"""The record of a monitor: every look at a training, the alarms, and the last scan; saved as JSON and read back."""

from dataclasses import dataclass, field

from torch import Tensor

from depthscope.errors import UnknownNameError
from depthscope.monitors.alarms import Alarm
from depthscope.records import Record
from depthscope.registry import unknown
from depthscope.scans.record import Scan


@dataclass(frozen=True, eq=False)
class History(Record):
    """history["t_sim"] (looks, depth + 1): row i is of the weights after steps[i] steps; state 0 enters block 1."""

    FORMAT = "depthscope.monitor"

    model: str
    depth: int
    every: int
    total: int | None
    steps: list[int]
    verdicts: list[str]  # one a look
    diversity: Tensor  # (looks,), at the last block, without what hides it
    curves: dict[str, Tensor]  # (looks, depth + 1); of blocks and heads (looks, depth)
    alarms: list[Alarm]
    last: Scan | None
    alarmed: Scan | None  # in full, made at the newest alarm
    notes: list[str] = field(default_factory=list)

    def gist(self) -> str:
        alarms = f"{len(self.alarms)} alarm{'' if len(self.alarms) == 1 else 's'}"
        until = f" up to step {self.steps[-1]}: {self.verdicts[-1]}" if self.steps else ""
        return f"{self.model}, {self.depth} blocks, {len(self.steps)} looks{until}, {alarms}"

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.curves:
            raise UnknownNameError("history: " + unknown("curve", name, self.curves))
        return self.curves[name]
