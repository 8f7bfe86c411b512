"""Who does the jobs: this machine, or an executor that the user has; by name local, dask:ADDRESS or slurm:OPTIONS."""

import json
import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from depthscope.errors import MissingExtraError, UnknownNameError, UsageError
from depthscope.extras import install
from depthscope.registry import unknown
from depthscope.training.submitit_jobs import SubmititJobs

REACH = "10s"  # how long a scheduler of Dask has to answer
QUEUED = 100  # jobs that are in the queue of Slurm at a time
GRAMMAR = (
    "local, dask:ADDRESS or slurm:OPTIONS, as dask:tcp://10.0.0.5:8786 or slurm:slurm_partition=cpu,timeout_min=60"
)
_chosen: ContextVar[Any] = ContextVar("executor", default="local")


@dataclass(frozen=True)
class Crew:
    """An executor; workers: how many calls it does at once, None where it does not say.

    asked: the jobs at once that the user asked for: no more are handed out, whatever queue the executor has.
    """

    executor: Executor
    workers: int | None
    asked: int | None = None


@contextmanager
def using(executor: Any) -> Iterator[None]:
    """While this is open, jobs whose caller names no executor go to this one."""
    if isinstance(executor, str):
        _maker(executor)  # a mistake is told now, and not by the first job
    token = _chosen.set(_chosen.get() if executor is None else executor)
    try:
        yield
    finally:
        _chosen.reset(token)


@contextmanager
def opened(executor: Any, processes: int | None, folder: Path) -> Iterator[Crew]:
    """An executor for the time of a comparison. One that came by name is made here, and ends here; a user's own stays.

    executor: a name, a concurrent.futures.Executor, one of submitit, or None for what using() says. processes: jobs at
    once. folder: where submitit may leave its files.
    """
    executor = _chosen.get() if executor is None else executor
    if isinstance(executor, str):
        with _maker(executor)(executor.partition(":")[2], processes, folder) as crew:
            yield replace(crew, asked=processes)
    elif isinstance(executor, Executor):
        workers = processes or getattr(executor, "_max_workers", None)  # as dask.local asks them too
        yield Crew(executor, workers, processes)
    elif type(executor).__module__.partition(".")[0] == "submitit":
        here = getattr(executor, "cluster", type(executor).__name__) in ("local", "LocalExecutor", "debug")
        with _waited_for(SubmititJobs(executor, jobs := processes or (room() if here else QUEUED))) as own:
            yield Crew(own, jobs, processes)
    else:
        raise UsageError(
            f"executor: must be a concurrent.futures.Executor, one of submitit, or a name ({GRAMMAR}); "
            f"got {type(executor).__name__}. Of a Dask client pass client.get_executor()."
        )


def room() -> int:
    """Jobs that fit side by side on this machine: one for a core, but a GPU is not shared."""
    if torch.accelerator.is_available():
        return 1
    if hasattr(os, "sched_getaffinity"):  # the cores that are ours; macOS cannot tell
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _maker(words: str) -> Callable[[str, int | None, Path], AbstractContextManager[Crew]]:
    name = words.partition(":")[0]
    if name not in NAMED:
        raise UnknownNameError("executor: " + unknown("executor", name, NAMED) + f" Write {GRAMMAR}.")
    return NAMED[name]


@contextmanager
def _local(rest: str, processes: int | None, folder: Path) -> Iterator[Crew]:
    """Threads that do nothing but wait for the processes that they start."""
    if rest:
        raise UsageError(f"executor: local takes no options; got {rest!r}. processes= says how many jobs run at once.")
    with _waited_for(ThreadPoolExecutor(jobs := processes or room(), thread_name_prefix="job")) as executor:
        yield Crew(executor, jobs)


@contextmanager
def _dask(address: str, processes: int | None, folder: Path) -> Iterator[Crew]:
    if not address:
        raise UsageError(f"executor: dask must come with the address of its scheduler; got none. Write {GRAMMAR}.")
    try:
        from distributed import Client
    except ImportError:
        raise MissingExtraError(f"executor: dask needs distributed. {install('scale')}") from None
    try:
        client = Client(address, timeout=REACH, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"executor: a scheduler of Dask must answer at {address}; {' '.join(str(error).split())[:200]}. "
            "Start one with dask scheduler, and workers with dask worker ADDRESS."
        ) from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            warnings.warn(f"executor: {address} has no workers yet; jobs wait for the first.", stacklevel=2)
        yield Crew(client.get_executor(), processes or workers or None)


@contextmanager
def _slurm(options: str, processes: int | None, folder: Path) -> Iterator[Crew]:
    try:
        import submitit
    except ImportError:
        raise MissingExtraError(f"executor: slurm needs submitit. {install('scale')}") from None
    chosen = {"name": "depthscope", "cpus_per_task": 1} | _options(options)
    try:
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster="slurm")
    except RuntimeError as error:
        raise UsageError(
            f"executor: slurm must be started on a machine that submits to Slurm; {error} Or use local or dask:ADDRESS."
        ) from error
    try:
        executor.update_parameters(**chosen)
    except (NameError, AssertionError) as error:
        raise UsageError(f"executor: slurm must get options that submitit knows; {error}") from error
    with _waited_for(SubmititJobs(executor, jobs := processes or QUEUED)) as own:
        yield Crew(own, jobs)


NAMED: dict[str, Callable[[str, int | None, Path], AbstractContextManager[Crew]]] = {
    "local": _local,
    "dask": _dask,
    "slurm": _slurm,
}


@contextmanager
def _waited_for(executor: Executor) -> Iterator[Executor]:
    """An executor of ours: when it is over, nothing of it is left in a queue."""
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _options(words: str) -> dict[str, Any]:
    """name=value pairs; numbers where they can be."""
    found: dict[str, Any] = {}
    for pair in filter(None, words.split(",")):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (name and equals and value):
            raise UsageError(f"executor: options of slurm must be name=value; got {pair!r}. Write {GRAMMAR}.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
