"""Checkpoints: folders that are there whole or not at all, so that a run killed at any moment can go on.

folder/step_000123/ holds model.safetensors, optimizer.safetensors, memory.safetensors (what a model remembers of the
batches before, empty for most) and state.json (the step, the record so far, size and checksum of the others, and its
own). Data order, augmentation and dropout are functions of seed and step, so no random state is kept.
"""

import json
import os
import re
import secrets
import shutil
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from depthscope.errors import CheckpointError, MissingExtraError, RecordError
from depthscope.extras import install
from depthscope.files import POSIX, SEAL, read_json, sealed
from depthscope.training.run import Run

FORMAT = "depthscope.checkpoint"
VERSION = 3  # 1 had no memory, 2 no checksum of its own
OLDEST = 2
KEEP = 2  # the newest, and the one before it in case a disk damages the newest
STATE = "state.json"
PARTS = ("model", "optimizer", "memory")


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
    part = folder / f"part-{secrets.token_hex(8)}-{target.name}"
    contents = {
        f"{name}.safetensors": _packed(tensors)
        for name, tensors in zip(PARTS, (model, optimizer, memory or {}), strict=True)
    }
    files = {name: {"bytes": len(data), "crc32": zlib.crc32(data)} for name, data in contents.items()}
    state = {"format": FORMAT, "version": VERSION, "step": step, "files": files, "run": run.to_dict()}
    contents[STATE] = json.dumps(sealed(state), allow_nan=False).encode()
    try:
        for old in folder.glob("part-*step_*"):  # of a process that was killed while it wrote
            _remove(old)
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
        kept = f"{last[0].name} is whole, and the run can continue from it" if last else "there is none before it"
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
        except (_NotWholeError, RecordError, OSError) as error:
            ignored.append(f"{path.name}: {error}")
    if ignored:
        warnings.warn(
            f"{folder}: no checkpoint is whole, so the run starts again from the beginning: {'; '.join(ignored)}",
            stacklevel=2,
        )
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
            f"{folder}: a run must continue with the settings that it began with; {said}. "
            "Give those settings again, or another folder."
        )


def _read(path: Path) -> tuple[int, list[dict[str, Tensor]], Run]:
    state = read_json(path / STATE, "checkpoint") if (path / STATE).exists() else None
    if not isinstance(state, dict) or "format" not in state:
        raise _NotWholeError(f"{STATE} must say what it is; it is not whole")
    version = state.get("version")
    if state["format"] != FORMAT or type(version) is not int or not OLDEST <= version <= VERSION:
        raise CheckpointError(
            f"{path / STATE}: must say format {FORMAT!r}, version {OLDEST} to {VERSION}; got {state['format']!r}, "
            f"{version!r}. Use the depthscope that wrote it, or another folder."
        )
    if version > 2 and SEAL not in state:
        raise _NotWholeError(f"{STATE} must have a checksum")
    try:
        step, files, record = state["step"], state["files"], state["run"]
        tensors = [_unpacked(path / f"{name}.safetensors", files[f"{name}.safetensors"]) for name in PARTS]
    except (KeyError, TypeError) as error:
        raise _NotWholeError(f"{STATE} must have all its fields; {error}") from None
    if type(step) is not int or path.name != f"step_{step:06d}":
        raise _NotWholeError(f"{STATE} must be of this step; got {step!r}")
    try:
        return step, tensors, Run.from_dict(record)
    except RecordError as error:
        if SEAL not in state:
            raise _NotWholeError(str(error)) from None
        raise CheckpointError(f"{path}: {error}") from error


def _unpacked(path: Path, facts: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a file that has the size and the checksum that were noted."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    data = path.read_bytes()
    if len(data) != facts["bytes"] or zlib.crc32(data) != facts["crc32"]:
        raise _NotWholeError(f"{path.name} must have {facts['bytes']} bytes with their checksum; got {len(data)}")
    try:
        return load(data)
    except (SafetensorError, ValueError) as error:
        raise _NotWholeError(f"{path.name} must be safetensors; {error}") from None


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
