"""A job in a process of its own, started by any worker: a thread here, a worker of Dask, a node of Slurm.

What a process sets for itself (threads, signals, the state of accelerate) is never the worker's, and a process that
dies takes no worker with it. All workers share the folder: it remembers what was done, and its locks say who is at it.
"""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from depthscope.errors import WorkerLostError
from depthscope.files import through_no_link
from depthscope.training.job import BUSY, ERRORS, GRACE, LOOK, STOPPED, Job, code
from depthscope.training.lock import in_use, is_asked_for
from depthscope.training.run import Run

GROUPS = ("PMI_", "PMIX_", "OMPI_", "MV2_", "MPI_")  # variables by which accelerate would take us for one of many
MEMBER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Asker:
    """Who wants results. lock: a file that it holds locked meanwhile. code: what it computes with. at: its folder."""

    lock: Path
    code: str
    at: str


def in_own_process(number: int, job: Job, asker: Asker) -> Run | str | None:
    """The run, words on how it failed, or None when another process is at it. A process that was lost is an error.

    number: of the call; it makes no difference here.
    """
    try:
        return job.ended() or _refusal(job, asker) or (None if in_use(job.folder) else _trained(job, asker))
    except WorkerLostError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error} (on {socket.gethostname()})"


def _refusal(job: Job, asker: Asker) -> str:
    """Why this worker cannot do the job; "" when it can."""
    host = socket.gethostname()
    if not asker.lock.parent.is_dir():
        return f"{asker.lock.parent}: must be on a disk that all workers share; {host} does not have it"
    if asker.code != code():
        return f"{host}: every worker must have the code of the one who asks; this one's depthscope differs"
    if not is_asked_for(asker.lock):
        return f"{asker.lock}: must be locked by the one who asks, also as {host} sees it; it is not"
    return ""


def _trained(job: Job, asker: Asker) -> Run | str | None:
    path = job.write()
    with open(job.folder / ERRORS, "ab", opener=through_no_link) as errors:
        begun = errors.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "depthscope.training.job", str(path), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            env=_alone(),
            cwd=asker.at if Path(asker.at).is_dir() else None,  # files of a task may be named from there
            start_new_session=True,  # ^C reaches whoever asks, who tells us by its lock
        )
    try:
        ended = _ended(process, asker)
    finally:
        _stop(process)
    status = process.returncode
    if status == BUSY:
        return None
    if not ended:
        return f"stopped on {socket.gethostname()}: the process that asked for it has ended"
    words = _last_words(job, begun, status)
    if status < 0 or status == STOPPED:
        raise WorkerLostError(words)
    return job.ended() or words


def _ended(process: subprocess.Popen[bytes], asker: Asker) -> bool:
    """Wait for a process; False when nobody waits for its result any more."""
    while True:
        try:
            process.wait(LOOK)
            return True
        except subprocess.TimeoutExpired:
            if not is_asked_for(asker.lock):
                return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a process that still runs to stop, wait while it writes its checkpoint, and end it if it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _alone() -> dict[str, str]:
    """Our environment for a process of its own: one thread, and not a member of a group that torchrun or MPI made."""
    own = {name: value for name, value in os.environ.items() if name not in MEMBER and not name.startswith(GROUPS)}
    return own | {"OMP_NUM_THREADS": "1"}


def _last_words(job: Job, begun: int, status: int) -> str:
    """How a process ended, and the last line it wrote; begun: where its own lines begin."""
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"
    written = (job.folder / ERRORS).read_bytes()[begun:].decode(errors="replace")
    said = next((line.strip() for line in reversed(written.splitlines()) if line.strip()), "")
    return f"{how}: {said}" if said else how
