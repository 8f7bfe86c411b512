"""The lock of a folder: one process at a time, on this machine and on those that share its disk."""

import fcntl
from pathlib import Path
from typing import IO, Any

from depthscope.errors import UsageError
from depthscope.files import check_writable

LOCK = "lock"


def lock(folder: Path) -> IO[Any] | None:
    """The lock, held until the file is closed, also by the end of its process; None when another process has it."""
    check_writable(folder / LOCK)
    file = open(folder / LOCK, "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    except OSError as error:
        file.close()
        raise UsageError(
            f"{folder}: must be on a disk that can lock files; {error.strerror}. Choose another place."
        ) from error
    return file


def lock_or_refuse(folder: Path) -> IO[Any]:
    """The lock, or an error when another process has it."""
    held = lock(folder)
    if held is None:
        raise UsageError(
            f"{folder}: only one process may train there; another does. Wait for its end, or choose another folder."
        )
    return held
