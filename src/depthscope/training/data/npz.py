"""CIFAR-10 from one .npz file. Arrays only: a pickle inside is refused, since it could run code.

What an array says of its size is checked before it is read: zeros pack to a thousandth, and would fill the memory.
"""

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
import torch

from depthscope.errors import ShapeError, UsageError, first_line
from depthscope.training.data.images import Split, check_split

KEYS = ("train_images", "train_labels", "test_images", "test_labels")
FREE = 2**26  # bytes that a file may unpack to, however small it is
MOST = 64  # times its own size that a larger one may; photographs pack to a half, drawings to a twentieth


def read_npz(path: Path) -> tuple[Split, Split]:
    """(train, test) of a file with train_images (N, 32, 32, 3) uint8, train_labels (N,), and the same for test."""
    if not path.is_file():
        raise UsageError(f"{path}: the file must exist; it does not. Check the path.")
    try:
        # opened by us: numpy leaves the file open when it cannot read it
        with path.open("rb") as file:
            _check_size(path, file)
            archive = np.load(file, allow_pickle=False)
            missing = [key for key in KEYS if key not in getattr(archive, "files", ())]
            if missing:
                raise UsageError(f"{path}: must hold the arrays {', '.join(KEYS)}; {', '.join(missing)} is missing.")
            arrays = {key: archive[key] for key in KEYS}
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and the decompressors each have their own
        raise UsageError(
            f"{path}: must be a whole .npz of plain arrays, without pickled objects; "
            f"{type(error).__name__}: {first_line(error)}. "
            "Write it with numpy.savez, or copy it again."
        ) from error
    return _split(path, "train", arrays), _split(path, "test", arrays)


def _check_size(path: Path, file: IO[bytes]) -> None:
    """Raise where the arrays of a zip would take far more memory than the file takes of the disk."""
    if not zipfile.is_zipfile(file):
        raise ValueError("it is no zip file")
    with zipfile.ZipFile(file) as archive:
        size = sum(member.file_size for member in archive.infolist())  # zipfile reads no more than this
    if size > max(FREE, MOST * path.stat().st_size):
        raise UsageError(
            f"{path}: must unpack to at most {MOST} times its size; its arrays would take {size / 1e6:,.0f} MB, "
            f"{size / path.stat().st_size:,.0f} times as much. Images do not pack so well: it is damaged or a trap."
        )
    file.seek(0)


def _split(path: Path, part: str, arrays: dict[str, np.ndarray]) -> Split:
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise ShapeError(
            f"{path}: {part}_images must be uint8 (N, 32, 32, 3); got {images.dtype} {images.shape}. "
            "Put the channels last, values from 0 to 255."
        )
    if labels.dtype.kind not in "iu":
        raise UsageError(f"{path}: {part}_labels must be whole numbers; got {labels.dtype}. Save them as int64.")
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    split = Split(channels_first, torch.from_numpy(labels.astype(np.int64)))
    check_split(f"{path}, {part}", split, classes=10)
    return split
