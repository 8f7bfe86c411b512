"""Text files, plain or .gz: read as UTF-8 and nothing else, and what is no text is refused with its place."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from depthscope.errors import UsageError

FREE = 2**26  # bytes that a packed file may unpack to, however small it is
MOST = 100  # times its own size that a larger one may; texts pack to a third, dull ones to a twentieth


def lines(path: Path) -> Iterator[str]:
    r"""The lines of a text file, each with the \n at its end, one after another: the file is never whole in memory."""
    offset = 0
    try:
        with _unpacked(path) if path.suffix == ".gz" else path.open("rb") as file:
            for line in file:
                yield _decoded(path, line, offset)
                offset += len(line)
    except FileNotFoundError:
        raise UsageError(f"{path}: the file must exist; it does not. Check the path.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:  # damaged, cut off, damaged further in
        raise UsageError(f"{path}: must be a whole gzip file; {error}. Copy it again, or unpack it.") from error
    except OSError as error:
        raise UsageError(f"{path}: must be a file that can be read; {error.strerror or error}. Check it.") from error
    if offset == 0:
        raise UsageError(f"{path}: must hold text; it is empty. Give another file.")


def _unpacked(path: Path) -> IO[bytes]:
    limit = max(FREE, MOST * path.stat().st_size)
    return io.BufferedReader(_Bounded(gzip.open(path), path, limit))


class _Bounded(io.RawIOBase):
    """A stream that says no beyond a number of bytes: a packed line of zeros would fill the memory."""

    def __init__(self, inner: Any, path: Path, limit: int) -> None:
        self._inner, self._path, self._limit, self._left = inner, path, limit, limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._inner.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise UsageError(
                f"{self._path}: must unpack to at most {self._limit:,} bytes, {MOST} times its size; it unpacks to "
                "more. No text packs so well: it is damaged or a trap."
            )
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._inner.close()
        super().close()


def read_text(path: Path) -> str:
    """All of a text file."""
    return "".join(lines(path))


def _decoded(path: Path, line: bytes, offset: int) -> str:
    try:
        text = line.decode("utf-8")
        place = line.find(b"\0")  # never in text, but in UTF-16 that happens to be valid UTF-8
    except UnicodeDecodeError as error:
        text, place = "", error.start
    if place < 0:
        return text
    unpacked = " of the unpacked text" if path.suffix == ".gz" else ""
    raise UsageError(
        f"{path}: must be text in UTF-8; got the byte 0x{line[place]:02x} at offset {offset + place}{unpacked}, "
        "which is not. Convert the file, or give another."
    )
