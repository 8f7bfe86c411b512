"""submitit as a concurrent.futures.Executor: its jobs become Futures. submitit talks to Slurm, or starts processes."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any


class SubmititJobs(Executor):
    """Each call is a job of submitit; a thread waits for its end, so that at most `jobs` are in the queue at a time."""

    def __init__(self, executor: Any, jobs: int) -> None:
        self._executor, self._waiting = executor, ThreadPoolExecutor(jobs, thread_name_prefix="submitit")
        self._jobs: set[Any] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._waiting.submit(self._to_its_end, fn, args, kwargs)

    def _to_its_end(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        job = self._executor.submit(fn, *args, **kwargs)
        self._jobs.add(job)
        try:
            return job.result()
        finally:
            self._jobs.discard(job)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Those that wait in the queue of Slurm are taken from it when calls are cancelled."""
        if cancel_futures:
            for job in [*self._jobs]:
                job.cancel(check=False)
        self._waiting.shutdown(wait, cancel_futures=cancel_futures)
