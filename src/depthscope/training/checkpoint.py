"""Checkpoints: folders that are there whole or not at all, so that a run killed at any moment can go on.

folder/step_000123/ holds model.safetensors, optimizer.safetensors, memory.safetensors (what a model remembers of the
batches before, empty for most) and state.json (the step, the record so far, and size and checksum of the others). Data
order, augmentation and dropout are functions of seed and step, so no random state is kept.
"""

import json
import os
import re
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from depthscope.errors import CheckpointError, MissingExtraError, RecordError
from depthscope.extras import install
from depthscope.files import POSIX
from depthscope.training.run import Run

FORMAT = "depthscope.checkpoint"
VERSION = 2  # 1 had no memory
KEEP = 2  # the newest, and the one before it in case a disk damages the newest
STATE = "state.json"


@dataclass(frozen=True, eq=False)
class Saved:
    """What a checkpoint holds; step is the number of steps done. ignored: newer folders that were not whole."""

    step: int
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    memory: dict[str, Tensor]
    run: Run
    ignored: tuple[str, ...] = ()


class _NotWholeError(Exception):
    """A folder that lost a part of itself."""


def save(
    folder: str | Path,
    step: int,
    model: dict[str, Tensor],
    optimizer: dict[str, Tensor],
    run: Run,
    memory: dict[str, Tensor] | None = None,
) -> Path:
    """Write a checkpoint beside the others, then drop all but the newest; after an error the last good ones stay."""
    folder = Path(folder)
    target = folder / f"step_{step:06d}"
    part = folder / f"part-{target.name}"
    parts = {"model": model, "optimizer": optimizer, "memory": memory or {}}
    contents = {f"{name}.safetensors": _packed(tensors) for name, tensors in parts.items()}
    files = {name: {"bytes": len(data), "crc32": zlib.crc32(data)} for name, data in contents.items()}
    state = {"format": FORMAT, "version": VERSION, "step": step, "files": files, "run": run.to_dict()}
    contents[STATE] = json.dumps(state, allow_nan=False).encode()
    try:
        _remove(part)  # of a process that was killed while it wrote
        part.mkdir(parents=True)
        for name, data in contents.items():
            _write(part / name, data)
        _sync(part)
        _remove(target)  # one that was not whole, or the same step once more at the end; the one before is still there
        os.replace(part, target)
        _sync(folder)
    except OSError as error:
        _remove(part)
        last = folders(folder)
        kept = f"{last[0].name} is whole, and the run can go on from it" if last else "there is none before it"
        raise CheckpointError(
            f"{target}: a checkpoint must be written whole; {error.strerror or error}. Of the earlier ones {kept}. "
            "Make room on the disk or choose another folder, and run the same command again."
        ) from error
    for old in folders(folder)[KEEP:]:
        _remove(old)
    return target


def latest(folder: str | Path) -> Saved | None:
    """The newest checkpoint that is whole; None where there is none."""
    ignored: list[str] = []
    for path in folders(Path(folder)):
        try:
            step, tensors, run = _read(path)
            model, optimizer, memory = tensors
            return Saved(step, model, optimizer, memory, run, tuple(ignored))
        except (_NotWholeError, OSError, ValueError) as error:
            if isinstance(error, RecordError):
                raise CheckpointError(f"{path}: {error}") from error
            ignored.append(f"{path.name}: {error}")
    return None


def folders(folder: Path) -> list[Path]:
    """The checkpoints of a folder, newest first; by number, for from a million on names are longer."""
    found = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")), reverse=True)


def refuse_other_settings(folder: str | Path | None, earlier: Run, run: Run) -> None:
    """Raise CheckpointError unless two runs have the same settings."""
    found = earlier.differences(run)
    if found:
        data = " (Another fingerprint: other data, another vocabulary, or cut another way.)"
        said = "; ".join(found) + (data if earlier.fingerprint != run.fingerprint else "")
        raise CheckpointError(
            f"{folder}: a run goes on with the settings that it began with; {said}. "
            "Give those settings again, or another folder."
        )


def _read(path: Path) -> tuple[int, list[Any], Run]:
    from safetensors.torch import load

    state = json.loads((path / STATE).read_text())
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise CheckpointError(
            f"{path / STATE}: must say format {FORMAT!r}, version {VERSION}; got {state.get('format')!r}, "
            f"{state.get('version')!r}. Use the depthscope that wrote it, or another folder."
        )
    tensors: list[Any] = []
    for name, facts in state["files"].items():
        data = (path / name).read_bytes()
        if len(data) != facts["bytes"] or zlib.crc32(data) != facts["crc32"]:
            raise _NotWholeError(f"{name} must have {facts['bytes']} bytes with their checksum; got {len(data)}")
        tensors.append(load(data))
    return state["step"], tensors, Run.from_dict(state["run"])


def _packed(tensors: dict[str, Tensor]) -> bytes:
    try:
        from safetensors.torch import save as pack
    except ImportError:
        raise MissingExtraError(f"checkpoint: needs safetensors. {install('train')}") from None
    return pack({name: tensor.contiguous() for name, tensor in tensors.items()})


def _write(path: Path, data: bytes) -> None:
    """The bytes, on the disk and not only in its cache."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """The names in a folder, on the disk too."""
    if not POSIX:  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
