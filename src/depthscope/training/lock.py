"""Locks that processes on one machine, or on several that share a disk, see of each other; filelock makes them."""

import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from depthscope.errors import UsageError
from depthscope.files import check_writable, refuse_link

LOCK = "lock"
TURN = 60.0  # seconds that a writer waits for others, who write for an instant
WAIT = 1.0  # seconds: whoever only looks whether a lock is free holds it for a moment


def lock(folder: Path) -> Any | None:
    """The lock of a folder, for a with statement; it ends with its process too. None when another process has it."""
    check_writable(folder / LOCK)
    return _acquired(folder / LOCK, WAIT)


def lock_or_refuse(folder: Path) -> Any:
    """The lock, or an error when another process has it."""
    held = lock(folder)
    if held is None:
        raise UsageError(
            f"{folder}: only one process may train there; another does. Wait for its end, or choose another folder."
        )
    return held


def in_use(folder: Path) -> bool:
    """Whether some process has the lock of a folder."""
    return _is_held(folder / LOCK)


@contextmanager
def asking(folder: Path) -> Iterator[Path]:
    """Yields a file that is locked as long as this process waits for results; no longer when it dies."""
    path = folder / f"asked-by-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    check_writable(path)
    held = _acquired(path, WAIT)
    if held is None:
        raise UsageError(f"{path}: must be new; another process has it. Run the same command again.")
    try:
        with held:
            yield path
    finally:
        with suppress(OSError):  # the folder was temporary, and is gone
            path.unlink()


def is_asked_for(path: Path) -> bool:
    """Whether the one who began asking(), here or on another machine, still waits for results."""
    return _is_held(path)


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Whoever reads a file to write it anew waits here for the others who do."""
    check_writable(path)
    held = _acquired(path.with_name(f".{path.name}.lock"), TURN)
    if held is None:
        raise UsageError(
            f"{path}: must be free to be written; another process has had it for {TURN:.0f} seconds. End that one."
        )
    with held:
        yield


def _is_held(path: Path) -> bool:
    if not path.exists():
        return False
    held = _acquired(path, 0.0)
    if held is None:
        return True
    with held:
        return False


def _acquired(path: Path, seconds: float) -> Any | None:
    refuse_link(path)  # older filelocks would follow it, and empty a file elsewhere
    try:
        return FileLock(path).acquire(timeout=seconds)
    except Timeout:
        return None
    except OSError as error:
        raise UsageError(
            f"{path.parent}: must be on a disk that can lock files; {error.strerror}. Choose another place."
        ) from error
