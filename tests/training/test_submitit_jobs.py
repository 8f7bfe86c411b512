"""Jobs of submitit as Futures, and what Slurm is told; submitit itself is played."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from depthscope.errors import UsageError
from depthscope.training import executors
from depthscope.training.executors import opened
from depthscope.training.submitit_jobs import SubmititJobs


def double(number: int, x: int) -> int:
    return 2 * x


class FakeJob:
    """A job of submitit: its result comes when it is told to, or an error when it is cancelled."""

    def __init__(self, value: Any) -> None:
        self.value, self.over, self.cancelled = value, threading.Event(), False

    def result(self) -> Any:
        assert self.over.wait(30)
        if self.cancelled:
            raise RuntimeError("UncompletedJobError")
        return self.value

    def cancel(self, check: bool = True) -> None:
        self.cancelled = True
        self.over.set()


class AutoExecutor:
    """As much of submitit.AutoExecutor as is asked for."""

    def __init__(self, folder: Path = Path(), cluster: str = "local") -> None:
        self.cluster, self.jobs, self.chosen = cluster, list[FakeJob](), dict[str, Any]()

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> FakeJob:
        self.jobs.append(FakeJob(fn(*args, **kwargs)))
        return self.jobs[-1]

    def update_parameters(self, **chosen: Any) -> None:
        if "partition" in chosen:
            raise NameError("Parameter 'partition' need to be prefixed by an executor name.")
        self.chosen = chosen


AutoExecutor.__module__ = "submitit.auto.auto"


def test_jobs_of_submitit_are_futures() -> None:
    inner = AutoExecutor()
    own = SubmititJobs(inner, jobs=2)
    first, second = own.submit(double, 0, 4), own.submit(double, 0, 5)
    while len(inner.jobs) < 2:
        threading.Event().wait(0.01)
    assert not first.done()
    next(job for job in inner.jobs if job.value == 8).over.set()
    assert first.result(30) == 8 and not second.done()
    own.shutdown(cancel_futures=True)
    with pytest.raises(RuntimeError, match="UncompletedJobError"):
        second.result(30)


def test_an_executor_of_submitit_is_taken_as_it_is(tmp_path: Path) -> None:
    for cluster, workers in (("local", executors.room()), ("slurm", executors.QUEUED)):
        with opened(AutoExecutor(cluster=cluster), None, tmp_path) as crew:
            assert isinstance(crew.executor, SubmititJobs) and crew.workers == workers


def test_slurm_gets_the_options_that_were_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AutoExecutor] = []

    def auto(**facts: Any) -> AutoExecutor:
        made.append(AutoExecutor(**facts))
        return made[-1]

    monkeypatch.setitem(sys.modules, "submitit", SimpleNamespace(AutoExecutor=auto))
    with opened("slurm:slurm_partition=cpu,timeout_min=60", 7, tmp_path) as crew:
        assert crew.workers == 7 and isinstance(crew.executor, SubmititJobs)
    assert made[0].cluster == "slurm" and made[0].chosen == {
        "name": "depthscope",
        "cpus_per_task": 1,
        "slurm_partition": "cpu",
        "timeout_min": 60,
    }
    for words, why in (
        ("partition=cpu", "options that submitit knows; Parameter 'partition'"),
        ("cpu", "must be name=value; got 'cpu'"),
    ):
        with pytest.raises(UsageError, match=why), opened(f"slurm:{words}", None, tmp_path):
            pass
    monkeypatch.setattr("submitit.AutoExecutor", lambda **_: exec("raise RuntimeError('no srun here.')"), raising=False)
    with (
        pytest.raises(UsageError, match="on a machine that submits to Slurm; no srun here"),
        opened("slurm:", None, tmp_path),
    ):
        pass
