"""The monitor as a callback of the Hugging Face Trainer.

trainer.add_callback(TrainerCallback(probe=batch, every=100)); trainer.train()
"""

import sys
from types import FrameType
from typing import Any

from depthscope.errors import UsageError, said_by
from depthscope.integrations.packages import need
from depthscope.monitors.choices import choices_of
from depthscope.monitors.monitor import Monitor

need("transformers", "5.0", "TrainerCallback", "hf")

import transformers  # noqa: E402
from transformers.trainer_callback import PrinterCallback, ProgressCallback  # noqa: E402

CONSOLE = ("NotebookProgressCallback",)  # by name: its module needs IPython


class TrainerCallback(transformers.TrainerCallback):
    """Scans the model every so many optimizer steps, and logs through Trainer.log; .monitor has history and alarms.

    probe: a batch as the model takes it; None takes the last training batch. Other choices as for ds.Monitor; total is
    the Trainer's own, and log replaces Trainer.log. trainer: only needed if another Trainer calls.

    Examples:
        >>> callback = ds.integrations.TrainerCallback(every=50)  # trainer.add_callback(callback)
        >>> callback.monitor is None  # until the training begins
        True
    """

    def __init__(self, probe: Any = None, every: int = 100, *, trainer: Any = None, **choices: Any) -> None:
        super().__init__()
        with said_by("TrainerCallback"):
            choices_of(every, choices, "TrainerCallback")
        self.probe, self.every, self.trainer, self.choices = probe, every, trainer, choices
        self.monitor: Monitor | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        own = {"total": state.max_steps, **self.choices}
        if "log" not in own:
            trainer = self.trainer or _caller(sys._getframe(1))
            own["log"] = lambda values, step: _log(trainer, values)
        with said_by("TrainerCallback"):
            self.monitor = Monitor(kwargs["model"], self.probe, self.every, start=state.global_step, **own)
        return self._control(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if self.monitor is not None:
            self.monitor.step(state.global_step)
        return self._control(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.monitor is not None:
            self.monitor.close()

    def _control(self, control: Any) -> Any:
        if self.monitor is not None and self.monitor.should_stop:
            control.should_training_stop = True
        return control


def _caller(frame: FrameType | None) -> Any:
    """The Trainer among those who call; callbacks are not told of it."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), transformers.Trainer):
            return frame.f_locals["self"]
        frame = frame.f_back
    raise UsageError("TrainerCallback: a Trainer must call it; none was found. Pass trainer=, or log=a function.")


def _log(trainer: Any, values: dict[str, float]) -> None:
    """Trainer.log, without the callbacks that print; whether the Trainer is about to log its loss stays as it was."""
    handler, control = trainer.callback_handler, trainer.control
    every, due = handler.callbacks, control.should_log
    console = (ProgressCallback, PrinterCallback)
    handler.callbacks = [one for one in every if not isinstance(one, console) and type(one).__name__ not in CONSOLE]
    try:
        trainer.log(values)
    finally:
        handler.callbacks, control.should_log = every, due
