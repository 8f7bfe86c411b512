"""CIFAR-10 from the binary version's folder: six files of records, one label byte and 3,072 pixel bytes each."""

from pathlib import Path

import numpy as np
import torch

from depthscope.errors import UsageError
from depthscope.training.data.images import Split, check_split

FOLDER = "cifar-10-batches-bin"
TRAIN_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST_FILE = "test_batch.bin"
RECORDS = 10_000  # in each file
RECORD_BYTES = 1 + 3 * 32 * 32


def find_folder(path: Path) -> Path:
    """The folder with the .bin files: path itself or the one inside it. The pickled version is refused."""
    for folder in (path, path / FOLDER):
        if any((folder / name).is_file() for name in (*TRAIN_FILES, TEST_FILE)):
            return folder
    pickled = any((folder / "data_batch_1").is_file() for folder in (path, path / "cifar-10-batches-py"))
    found = "it holds the Python version, which is pickled and could run code" if pickled else "it does not"
    raise UsageError(
        f"{path}: must hold {TRAIN_FILES[0]} and the other files of CIFAR-10's binary version; {found}. "
        f"Unpack cifar-10-binary.tar.gz and give its folder {FOLDER}."
    )


def read_folder(folder: Path) -> tuple[Split, Split]:
    """(train, test), each file checked for its size and its labels."""
    parts = [read_file(folder / name) for name in TRAIN_FILES]
    images, labels = (torch.cat(column) for column in zip(*((p.images, p.labels) for p in parts), strict=True))
    return Split(images, labels), read_file(folder / TEST_FILE)


def read_file(path: Path) -> Split:
    """One file: records of a label and the red, green and blue planes of an image, row by row."""
    try:
        raw = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise UsageError(f"{path}: the file must be readable; {error.strerror}. Unpack the archive again.") from error
    if raw.size != RECORDS * RECORD_BYTES:
        raise UsageError(
            f"{path}: must have {RECORDS * RECORD_BYTES} bytes, {RECORDS} records of {RECORD_BYTES}; "
            f"got {raw.size}. It was cut off or is another file: unpack the archive again."
        )
    records = torch.from_numpy(raw).view(RECORDS, RECORD_BYTES)
    split = Split(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long())
    check_split(str(path), split, classes=10)
    return split
