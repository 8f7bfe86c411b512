"""Files are written whole or not at all."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from depthscope.errors import UsageError

POSIX = os.name == "posix"  # Windows keeps the id of a parent that is gone, and cannot open a folder


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a path beside the target; what is written there takes the target's place when all went well."""
    target = Path(path)
    # a name that no other writer has, on any machine that shares the disk; the ending stays: some writers go by it
    part = target.with_name(f"part-{socket.gethostname()}-{os.getpid()}-{target.name}")
    check_writable(target)
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: the file must be writable; {error.strerror}. Choose another place.") from error
    finally:
        with suppress(OSError):  # there is none, or the error on its way says more
            part.unlink()


def check_writable(path: str | Path) -> None:
    """Make the folder of a file that is to be written, or say why that cannot be."""
    folder = Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: its folder must be writable; {error.strerror}. Choose another place.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: its folder must be writable; it is not. Choose another place.")
    if Path(path).is_dir():
        raise UsageError(f"{path}: must be a file; it is a folder. Add the name of a file.")
