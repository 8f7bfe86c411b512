"""Jobs side by side: one process each, as many as there are cores; one that dies takes nobody with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from depthscope.training.job import ERRORS, STEPS, Job
from depthscope.training.lock import lock
from depthscope.training.run import Run

PAUSE = 0.2  # seconds between two visits to the processes
GRACE = 15.0  # seconds that a process has to write its checkpoint when all must stop


@dataclass(frozen=True)
class Moment:
    """How far all is: jobs ended and in all, and (label, step, steps, loss, t_sim) of those that run."""

    ended: int
    total: int
    running: list[tuple[str, int, int, float, float]]


OnMoment = Callable[[Moment], None]


class JobSource(Protocol):
    """Where jobs come from and results go to. next() is None when there is nothing to start now."""

    @property
    def done(self) -> bool: ...

    @property
    def counts(self) -> tuple[int, int]: ...

    def next(self) -> Job | None: ...

    def ended(self, job: Job, outcome: Run | str) -> None: ...

    def show_life(self) -> None: ...

    def given_up(self) -> None: ...


def work(source: JobSource, processes: int, watch: OnMoment | None = None) -> None:
    """Do all jobs of a source. What is done already is not done again; what another machine does is waited for."""
    pool = Pool()
    waiting: list[Job] = []  # somebody else is at them
    try:
        while not source.done:
            ready, waiting = waiting, []
            while len(pool.running) < processes and (job := ready.pop(0) if ready else source.next()) is not None:
                run = job.ended()
                if run is not None:
                    source.ended(job, run)
                elif not pool.start(job):
                    waiting.append(job)
            waiting += ready
            for job, outcome in pool.ended():
                source.ended(job, outcome)
            source.show_life()
            if watch is not None:
                watch(Moment(*source.counts, pool.progress()))
            if not source.done:
                time.sleep(PAUSE)
    except BaseException:  # ^C too: nothing that we started outlives us
        source.given_up()
        raise
    finally:
        pool.stop()


class Pool:
    """The processes that run."""

    def __init__(self) -> None:
        self.running: dict[Job, subprocess.Popen[bytes]] = {}

    def start(self, job: Job) -> bool:
        """Begin a job; False when somebody else is at it."""
        held = lock(job.folder)
        if held is None:
            return False
        with held, open(job.folder / ERRORS, "wb") as errors:
            (job.folder / STEPS).unlink(missing_ok=True)
            self.running[job] = subprocess.Popen(
                [sys.executable, "-m", "depthscope.training.job", str(job.write()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=_one_thread(),
                pass_fds=(held.fileno(),),  # the lock is the child's: it lasts as long as the child, whatever we do
                start_new_session=True,  # ^C reaches us alone, and we tell the children
            )
        return True

    def ended(self) -> list[tuple[Job, Run | str]]:
        """The jobs that ended since they were last asked for: their runs, or words on how they failed."""
        over = [(job, process) for job, process in self.running.items() if process.poll() is not None]
        for job, _ in over:
            del self.running[job]
        return [(job, job.ended() or _last_words(job, process.returncode)) for job, process in over]

    def progress(self) -> list[tuple[str, int, int, float, float]]:
        return [(job.label, *_how_far(job)) for job in self.running]

    def stop(self) -> None:
        """Ask all to stop, wait while they write their checkpoints, and end those that do not."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + GRACE
        for process in self.running.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()


def _one_thread() -> dict[str, str]:
    """Our environment for a process of its own: one thread, and not a member of a group that torchrun started."""
    group = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: value for name, value in os.environ.items() if name not in group} | {"OMP_NUM_THREADS": "1"}


def _how_far(job: Job) -> tuple[int, int, float, float]:
    """(step, steps, loss, t_sim) by the last whole line that the job wrote; zeros before the first."""
    try:
        lines = (job.folder / STEPS).read_bytes()[-400:].splitlines(keepends=True)
        done, total, loss, t_sim = next(line for line in reversed(lines) if line.endswith(b"\n")).split()
        return int(done), int(total), float(loss), float(t_sim)
    except (OSError, StopIteration, ValueError):
        return 0, 0, float("nan"), float("nan")


def _last_words(job: Job, code: int) -> str:
    """How a process ended that left no result, and the last line it wrote."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [line.strip() for line in (job.folder / ERRORS).read_text(errors="replace").splitlines()]
    said = next((line for line in reversed(lines) if line), "")
    return f"{how}: {said}" if said else how
