"""What can be chosen for a monitor, checked before a training begins."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from depthscope.errors import UnknownNameError, UsageError
from depthscope.monitors.loggers import logger_for
from depthscope.monitors.probe import CURVES
from depthscope.registry import unknown
from depthscope.scans.chosen_metrics import chosen_metrics

ACTIONS = ("warn", "stop")


@dataclass(frozen=True)
class Choices:
    """every: steps between two looks. total: steps of the whole run, for the forecast and the last look.

    metrics, attention, blocks, mask, stream: as for ds.scan; heads are left out unless asked for. log: what is told of
    every look (loggers.py). action: "warn", "stop", or a function of an Alarm. floor: the diversity below which there
    is an alarm; None leaves it to the verdict. entropy_floor: of the attention of a block, as a share of the most that
    is possible, .05 where attention is looked at. patience: looks in a row that must say the same before there is an
    alarm. across: the processes that train together, "world" or a group; None for a process that is alone with its
    monitor.
    """

    every: int = 100
    total: int | None = None
    metrics: tuple[str, ...] = CURVES
    attention: bool = False
    blocks: str | Iterable[str] | None = None
    mask: Any = None
    stream: str | None = None
    log: Any = None
    action: str | Callable[..., Any] = "warn"
    floor: float | None = None
    entropy_floor: float | None = None
    patience: int = 1
    across: Any = "world"

    def __post_init__(self) -> None:
        for name in ("every", "patience", *(("total",) if self.total is not None else ())):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} must be a whole number, 1 or more; got {value!r}.")
        for name in ("entropy_floor", "floor"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1
            ):
                raise UsageError(f"{name} must lie between 0 and 1, a share; got {value!r}. 0.01 is one percent.")
        if self.entropy_floor is not None and not self.attention:
            raise UsageError("entropy_floor needs the entropy of attention, which is not measured. Add attention=True.")
        if not callable(self.action) and self.action not in ACTIONS:
            raise UnknownNameError(f"{unknown('action', str(self.action), ACTIONS)} Or give a function of an Alarm.")
        own = (self.metrics,) if isinstance(self.metrics, str) else tuple(self.metrics)
        object.__setattr__(self, "metrics", tuple(dict.fromkeys((*CURVES, *own))))
        chosen_metrics(self.metrics, attention=self.attention)  # an unknown name is told now
        logger_for(self.log)

    @property
    def scan(self) -> dict[str, Any]:
        """The settings of ds.scan among them."""
        metrics = (*self.metrics, "attention_entropy") if self.attention else self.metrics
        names = ("attention", "blocks", "mask", "stream")
        return {"metrics": tuple(dict.fromkeys(metrics)), **{name: getattr(self, name) for name in names}}


def choices_of(every: int, choices: dict[str, Any], where: str) -> Choices:
    """The choices under their names; one that nobody has is told with the nearest."""
    strange = [name for name in choices if name not in Choices.__dataclass_fields__]
    if strange:
        raise UsageError(f"{where}: {unknown('choice', strange[0], Choices.__dataclass_fields__)}")
    return Choices(every=every, **choices)
