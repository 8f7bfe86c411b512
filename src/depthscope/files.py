"""Files are written whole or not at all, and what is no longer as it was written is told."""

import json
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from depthscope.errors import DamagedError, RecordError, UsageError

POSIX = os.name == "posix"  # Windows keeps the id of a parent that is gone, and cannot open a folder
DIGITS = 300  # of a whole number: more would fit into no float
NESTED = 50  # lists in lists; a record has a dozen
SEAL = "crc32"  # the name in a file of JSON under which the checksum of all the rest is


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a new, empty file beside the target; it takes the target's place, on the disk too, when all went well."""
    target = Path(path)
    # a name that nobody can guess and lay a link under; the ending stays: some writers go by it
    part = target.with_name(f"part-{secrets.token_hex(8)}{target.suffix}")
    check_writable(target)
    try:
        part.touch(exist_ok=False)
        yield part
        with part.open("rb+") as written:
            os.fsync(written.fileno())
        part.replace(target)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{target}: the file must be writable; {why}. Choose another place.") from error
    finally:
        with suppress(OSError):  # there is none, or the error on its way says more
            part.unlink()


def refuse_link(path: str | Path) -> None:
    """For a file whose name is known beforehand, and so may be a link that another has laid."""
    if Path(path).is_symlink():
        raise UsageError(f"{path}: must be a file; it is a link. Take it away, or choose another place.")


def through_no_link(path: str, flags: int) -> int:
    """For open(..., opener=): the same at the very moment when the file is opened."""
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError:
        refuse_link(path)
        raise


def check_writable(path: str | Path) -> None:
    """Make the folder of a file that is to be written, or say why that cannot be."""
    folder = Path(path).parent
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r}: must be the name of a file; a zero byte is in it. Choose another name.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_folder = Path(path).is_dir()
    except OSError as error:
        raise UsageError(f"{path}: its folder must be writable; {error.strerror}. Choose another place.") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: its folder must be writable; it is not. Choose another place.")
    if is_folder:
        raise UsageError(f"{path}: must be a file; it is a folder. Add the name of a file.")


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """Plain data with a checksum of all of it."""
    return record | {SEAL: _checksum(record)}


def read_json(path: str | Path, who: str) -> Any:
    """The plain data in a JSON file, whose checksum is its own; one without was written by hand, or long ago."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"), parse_int=_whole_number)
        _check_depth(record)
        broken = isinstance(record, dict) and _is_broken(record)
    except FileNotFoundError:
        raise RecordError(f"{who}: the file must exist; {str(path)!r} does not. Check the path.") from None
    except OSError as error:
        raise RecordError(
            f"{who}: {str(path)!r} must be a file that can be read; {error.strerror}. Check it."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(
            f"{who}: {str(path)!r} must be JSON written by save(); {error}. The file is damaged, or another's."
        ) from None
    if broken:
        raise DamagedError(
            f"{who}: {str(path)!r} must be as it was written; its checksum is of other numbers or words. Copy it "
            f"again, or take {SEAL!r} out of it if it was changed on purpose."
        )
    return record


def _whole_number(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _check_depth(record: Any) -> None:
    """Raise ValueError where lists lie in so many others that whoever reads them would run out of calls."""
    level = [record]
    for _ in range(NESTED):
        level = [
            x for one in level if isinstance(one, dict | list) for x in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ValueError(f"lists lie in more than {NESTED} others")


def _is_broken(record: dict[str, Any]) -> bool:
    rest = {name: value for name, value in record.items() if name != SEAL}
    return SEAL in record and record[SEAL] != _checksum(rest)


def _checksum(record: dict[str, Any]) -> str:
    """Of the numbers and words alone, however the file spells and orders them."""
    return f"{zlib.crc32(json.dumps(record, sort_keys=True).encode()):08x}"
