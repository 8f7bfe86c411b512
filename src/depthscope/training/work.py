"""work: the jobs of a source go through an executor; what the shared folder has already is not done again."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from depthscope.training.handed_out import Call, HandedOut, Lost
from depthscope.training.job import GRACE, LOOK, STEPS, Job, code
from depthscope.training.lock import asking, in_use
from depthscope.training.own_process import Asker, in_own_process
from depthscope.training.run import Run

PAUSE = 0.2  # seconds between two looks at the source, the folders and the display


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


def work(
    source: JobSource,
    executor: Executor,
    folder: Path,
    *,
    at_once: int | None = None,
    watch: OnMoment | None = None,
) -> None:
    """Do all jobs of a source. What is done already is not done again; what another machine does is waited for.

    folder: on a disk that all workers share. at_once: jobs that are handed out at a time; else all that there are, for
    an executor has a queue of its own.
    """
    hands: HandedOut[Job] = HandedOut(executor)
    try:
        with asking(folder) as lock:
            asker, waiting = Asker(lock, code(), os.getcwd()), list[Job]()
            while not source.done:
                waiting = _hand_out(source, hands, waiting, asker, at_once)
                for job, outcome in hands.ended(PAUSE):
                    if outcome is None:  # somebody else is at it
                        waiting.append(job)
                    else:
                        source.ended(job, outcome.why if isinstance(outcome, Lost) else outcome)
                source.show_life()
                if watch is not None:
                    watch(Moment(*source.counts, [*_progress(hands)]))
    except BaseException:  # ^C too
        source.given_up()
        raise
    finally:  # the lock is gone, by which the workers know; nothing that we asked for outlives us
        hands.stop(LOOK + GRACE)


def _hand_out(
    source: JobSource, hands: HandedOut[Job], waiting: list[Job], asker: Asker, at_once: int | None
) -> list[Job]:
    """Hand out what may be begun; returns the jobs that somebody else is at."""
    ready, taken = list(waiting), list[Job]()
    while at_once is None or len(hands) < at_once:
        job = ready.pop(0) if ready else source.next()
        if job is None:
            break
        run = job.ended()
        if run is not None:
            source.ended(job, run)
        elif in_use(job.folder):
            taken.append(job)
        else:
            hands.submit(Call(job, job.label, in_own_process, (job, asker)))
    return taken + ready


def _progress(hands: HandedOut[Job]) -> Iterator[tuple[str, int, int, float, float]]:
    for job, runs in hands.running():
        done, *rest = _how_far(job)
        if runs or done:
            yield job.label, done, *rest  # type: ignore[misc]


def _how_far(job: Job) -> tuple[int, int, float, float]:
    """(step, steps, loss, t_sim) by the last whole line that the job wrote; zeros before the first."""
    try:
        lines = (job.folder / STEPS).read_bytes()[-400:].splitlines(keepends=True)
        done, total, loss, t_sim = next(line for line in reversed(lines) if line.endswith(b"\n")).split()
        return int(done), int(total), float(loss), float(t_sim)
    except (OSError, StopIteration, ValueError):
        return 0, 0, float("nan"), float("nan")
