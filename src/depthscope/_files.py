"""Files are written whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from depthscope.errors import UsageError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a path beside the target; what is written there takes the target's place when all went well."""
    target = Path(path)
    part = target.with_name(f"part-{target.name}")  # the ending stays: some writers go by it
    check_writable(target)
    try:
        yield part
        part.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: the file must be writable; {error.strerror}. Choose another place.") from error
    finally:
        part.unlink(missing_ok=True)


def check_writable(path: str | Path) -> None:
    """Make the folder of a file that is to be written, or say why that cannot be."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: its folder must be writable; {error.strerror}. Choose another place.") from error
