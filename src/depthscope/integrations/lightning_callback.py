"""The monitor as a callback of Lightning: Trainer(callbacks=[LightningCallback(probe=batch, every=100)])."""

import math
import sys
from typing import Any

from torch import nn

from depthscope.errors import UsageError, said_by
from depthscope.integrations.packages import need
from depthscope.monitors.choices import choices_of
from depthscope.monitors.monitor import Monitor

OLD_NAME = "pytorch_lightning"  # the same package under its first name; the two do not know each other's classes
if OLD_NAME in sys.modules and "lightning.pytorch" not in sys.modules:
    need("pytorch-lightning", "2.0", "LightningCallback", "lightning")
    from pytorch_lightning import Callback, LightningModule
else:
    need("lightning", "2.0", "LightningCallback", "lightning")
    from lightning.pytorch import Callback, LightningModule


class LightningCallback(Callback):
    """Scans the model every so many optimizer steps, and logs to all loggers of the Trainer.

    probe: a batch as the model takes it; None takes the last training batch. model: the name of the part to scan, "net"
    for self.net; None is the LightningModule itself, by its forward. Other choices as for ds.Monitor; total is the
    Trainer's own, and log replaces its loggers. .monitor has history and alarms.

    Examples:
        >>> callback = ds.integrations.LightningCallback(every=50)  # Trainer(callbacks=[callback])
        >>> callback.monitor is None  # until the training begins
        True
    """

    def __init__(self, probe: Any = None, every: int = 100, *, model: str | None = None, **choices: Any) -> None:
        super().__init__()
        with said_by("LightningCallback"):
            choices_of(every, choices, "LightningCallback")
        self.probe, self.every, self.model, self.choices = probe, every, model, choices
        self.monitor: Monitor | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = trainer.estimated_stepping_batches
        own = {"total": int(steps) if math.isfinite(steps) else None, **self.choices}
        own.setdefault("log", lambda values, step: _log(trainer, values))
        around = trainer.precision_plugin.forward_context
        with said_by("LightningCallback"):
            part = _part(pl_module, self.model)
            self.monitor = Monitor(part, self.probe, self.every, start=trainer.global_step, around=around, **own)
        self._stop(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.monitor is not None:
            self.monitor.step(trainer.global_step)
            self._stop(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()

    def _stop(self, trainer: Any) -> None:
        if self.monitor is not None and self.monitor.should_stop:
            trainer.should_stop = True


def _part(module: Any, name: str | None) -> nn.Module:
    if name is not None:
        try:
            return module.get_submodule(name)
        except AttributeError:
            parts = ", ".join(path for path, _ in module.named_children()) or "none"
            raise UsageError(
                f"model= must name a part of {type(module).__name__}; {name!r} is none of: {parts}."
            ) from None
    if type(module).forward is LightningModule.forward:
        raise UsageError(
            f"{type(module).__name__} must have a forward that runs the model; it has none. Write one, or name the "
            'part that runs: model="net" for self.net.'
        )
    return module


def _log(trainer: Any, values: dict[str, float]) -> None:
    """To every logger, whatever log_every_n_steps is, on the axis of Lightning's own values."""
    for logger in trainer.loggers:
        logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
