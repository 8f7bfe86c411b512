"""Who is told of a look: a function, or one of the objects that people log to."""

from collections.abc import Callable
from typing import Any

from depthscope.errors import UsageError

Log = Callable[[dict[str, float], int], Any]


def logger_for(log: Any) -> Log:
    """A function of values by name and a step.

    log: None, such a function, or an object with add_scalar (TensorBoard's SummaryWriter), log_metrics (loggers of
    Lightning, the module mlflow), or log (a run of W&B, an Accelerator).
    """
    if log is None:
        return lambda values, step: None
    if callable(getattr(log, "add_scalar", None)):
        return lambda values, step: [log.add_scalar(name, value, step) for name, value in values.items()]
    if callable(getattr(log, "log_metrics", None)):
        return lambda values, step: log.log_metrics(values, step=step)
    if callable(getattr(log, "log", None)) and not isinstance(log, type):
        return lambda values, step: log.log(values, step=step)
    if callable(log):
        return log
    raise UsageError(
        "log must be a function of (values, step), or an object with add_scalar (SummaryWriter), log_metrics (a logger "
        f"of Lightning, mlflow) or log (a run of W&B, an Accelerator); got {type(log).__name__}."
    )
