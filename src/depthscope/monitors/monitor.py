"""ds.Monitor: looks at a model every so many steps of any training, and raises an alarm when its tokens are lost."""

import operator
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import DepthscopeError, MonitorWarning, UsageError, said_by
from depthscope.monitors.alarms import Alarm, alarms_of
from depthscope.monitors.choices import choices_of
from depthscope.monitors.history import History
from depthscope.monitors.last_batch import LastBatch
from depthscope.monitors.loggers import logger_for
from depthscope.monitors.names import curves_of, flat
from depthscope.monitors.probe import Probe, fixed
from depthscope.monitors.together import group_of, is_first, told_by_all
from depthscope.scans.record import Scan
from depthscope.traces.entry import enter

GIVE_UP = 3  # looks in a row that fail


class Monitor:
    """Scans a probe batch every so many optimizer steps: call step(n) after each step, and read should_stop.

    The first scan is made at once (without a probe: after the first step). If something is wrong with the model, the
    probe or a choice, that is an error then. If a scan fails later, you get one warning, and the training goes on. If
    several processes train together, all of them must call; the first one logs and warns, and all stop if one has
    reason to.

    Args:
        model: The model as it is trained, in any wrapper.
        probe: One fixed batch, or a list of them, as for ds.scan. None takes the last training batch, and runs it once
            more with dropout off.
        every: Optimizer steps between two scans.
        start: The number of steps that were already done.
        around: A context for the forward pass.
        **choices: total, metrics, attention, blocks, mask, stream, log, action, floor, entropy_floor, patience, across;
            see depthscope.monitors.choices.Choices.

    Examples:
        >>> model, batch = ds.models.classic(depth=2, d=8, h=2), torch.randn(2, 4, 8)  # (batch, n, d)
        >>> monitor = ds.Monitor(model, batch, every=10)
        >>> scans = [monitor.step(step) for step in range(1, 21)]  # after each step of the optimizer
        >>> monitor.history.steps, monitor.should_stop
        ([0, 10, 20], False)
    """

    @said_by("Monitor")
    def __init__(
        self,
        model: nn.Module,
        probe: Any = None,
        every: int = 100,
        *,
        start: int = 0,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
        **choices: Any,
    ) -> None:
        self.choices = choices_of(every, choices, "Monitor")
        enter(model)
        self.should_stop = False
        self.alarms: list[Alarm] = []
        self.notes: list[str] = []
        self.last: Scan | None = None
        self.alarmed: Scan | None = None  # in full, made at the newest alarm
        self.seconds = 0.0  # spent on looks
        self._group = group_of(self.choices.across)
        self._log = logger_for(self.choices.log)
        self._steps: list[int] = []
        self._scans: list[tuple[str, float, dict[str, Tensor]]] = []  # verdict, diversity, curves
        self._in_a_row: dict[str, int] = {}
        self._failed = 0
        self._warned: set[str] = set()  # kinds of trouble
        self._seen = start  # the last step that was told
        self._hook = LastBatch(model) if probe is None else None
        settings = self.choices.scan | ({"across": self._group} if probe is None else {})
        inputs = self._hook if probe is None else fixed(probe, model)
        self._probe = Probe(model, inputs, every, around=around, **settings)
        if probe is not None:
            self._look(start)

    @said_by("Monitor")
    def step(self, n: int | None = None) -> Scan | None:
        """Tell that n optimizer steps are done (None: one more); the scan where this was a step to look at."""
        before, n = self._seen, self._seen + 1 if n is None else _whole(n)
        if n < before:
            raise UsageError(
                f"step takes the number of optimizer steps done, which never falls; got {n!r} after {before}."
            )
        self._seen = n
        first = self._hook is not None and not self._steps and not self._failed
        due = n > before and self._probe.due(n, self.choices.total, since=before)
        return self._look(n) if (first or due) and self._failed < GIVE_UP else None

    def close(self) -> None:
        """Forget the model's last batch, where that was looked at; after it, step() looks no more."""
        if self._hook is not None:
            self._hook.remove()
        self._failed = GIVE_UP

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def history(self) -> History:
        """All looks so far, as a record."""
        verdicts, diversity, curves = zip(*self._scans, strict=True) if self._scans else ((), (), ())
        return History(
            model=self.last.title if self.last else type(enter(self._probe.model).model).__name__,
            depth=self.last.depth if self.last else 0,
            every=self.choices.every,
            total=self.choices.total,
            steps=list(self._steps),
            verdicts=list(verdicts),
            diversity=torch.tensor(diversity, dtype=torch.float64),
            curves={name: torch.stack([one[name] for one in curves]) for name in (curves[0] if curves else ())},
            alarms=list(self.alarms),
            last=self.last,
            alarmed=self.alarmed,
            notes=list(self.notes),
        )

    def draw(self, figure: Any = None) -> Any:
        """Token similarity over blocks and steps as a heat map, into a matplotlib figure; returns it."""
        return self.history.draw(figure)

    def _look(self, step: int) -> Scan | None:
        """Scan, keep, log, judge. The first look raises; later ones say once what went wrong."""
        began = time.perf_counter()
        found: Scan | None = None
        alarms: list[Alarm] = []
        trouble: Exception | None = None
        try:
            found = self._kept(self._probe.scan(), step)
            alarms = self._ripe(found)
        except Exception as error:
            trouble = error
        told = told_by_all((alarms, "" if trouble is None else str(trouble)), self._group)
        failed = next((words for _, words in told if words), "")
        if failed and not self._steps[: -1 if found else None]:
            self.close()
            raise trouble or UsageError(f"another process could not look at the model: {failed}")
        if failed:
            self._say_failed(step, failed)
        else:
            self._failed = 0
        rung = list({alarm.kind: alarm for some, _ in reversed(told) for alarm in some}.values())  # of any process
        self._act(rung if failed else self._explained(rung))
        if found is not None and is_first(self._group):
            self._tell(found, step)
        self.seconds += time.perf_counter() - began
        return found

    def _kept(self, found: Scan, step: int) -> Scan:
        """The numbers of a scan, put with those before."""
        if self.last is not None and self.last.depth != found.depth:
            raise DepthscopeError(f"the model must keep its {self.last.depth} blocks; it has {found.depth} now.")
        row = (found.verdict.status, found.verdict.diversity, curves_of(found, self._probe.settings["metrics"]))
        self._steps.append(step)
        self._scans.append(row)
        self.last = found
        return found

    def _ripe(self, found: Scan) -> list[Alarm]:
        """The alarms that were so for as many looks as patience asks (a NaN at once), each when it becomes so."""
        now = {one.kind: one for one in alarms_of(found, self._steps, self._diversity, self.choices)}
        self._in_a_row = {kind: self._in_a_row.get(kind, 0) + 1 for kind in now}
        wait = {kind: 1 if kind == "not a number" else self.choices.patience for kind in now}
        return [one for kind, one in now.items() if self._in_a_row[kind] == wait[kind]]

    def _explained(self, alarms: list[Alarm]) -> list[Alarm]:
        """The same alarms, with what a scan of all metrics and heads says of them; looks have a few metrics."""
        if not alarms:
            return []
        try:
            self.alarmed = self._probe.scan(metrics=None, attention=True)
            better = alarms_of(self.alarmed, self._steps, self._diversity, self.choices)
        except Exception as error:  # what can be said without it is said
            self.alarmed = self.last
            self._note("scan", f"step {self._steps[-1]}: a scan of all metrics at the alarm failed: {error}")
            return alarms
        return [next((one for one in better if one.kind == alarm.kind), alarm) for alarm in alarms]

    @property
    def _diversity(self) -> list[float]:
        return [diversity for _, diversity, _ in self._scans]

    def _act(self, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            self.alarms.append(alarm)
            if callable(self.choices.action):
                self.choices.action(alarm)
                continue
            self.should_stop |= self.choices.action == "stop"
            if is_first(self._group):
                warnings.warn(MonitorWarning(str(alarm)), stacklevel=5)

    def _tell(self, found: Scan, step: int) -> None:
        try:
            self._log(flat(found, self._scans[-1][2]), step)
        except Exception as error:
            self._note("logger", f"step {step}: the logger failed: {type(error).__name__}: {error}")

    def _say_failed(self, step: int, words: str) -> None:
        self._failed += 1
        more = "" if self._failed < GIVE_UP else f" After {GIVE_UP} failures in a row the monitor gives up."
        kind = "look" if not more else "end"
        self._note(kind, f"step {step}: a look at the model failed, and the training goes on: {words}{more}")

    def _note(self, kind: str, words: str) -> None:
        """Every trouble is noted, and the first one of a kind is a warning."""
        if kind not in self._warned and is_first(self._group):
            warnings.warn(MonitorWarning(f"depthscope: {words}"), stacklevel=6)
        self._warned.add(kind)
        self.notes.append(words)


def _whole(n: Any) -> int:
    """A whole number of steps, of numpy too."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise UsageError(f"step takes the number of optimizer steps done, a whole number; got {n!r}.")
    return operator.index(n)
