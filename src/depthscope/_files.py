"""Files are written whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a path beside the target; what is written there takes the target's place when all went well."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"part-{target.name}")  # the ending stays: some writers go by it
    try:
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
