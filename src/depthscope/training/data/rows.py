"""Images by Hugging Face datasets: an image folder on disk or a dataset of the hub, as uint8 tensors by split."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from depthscope.errors import MissingExtraError, UsageError, first_line
from depthscope.extras import install
from depthscope.training.data.images import Split

PIXELS = 2**26  # of an image file, 200 MB in memory; the largest that pillow reads without a warning is 2^26.4


def read_rows(data: str, *, side: int, resize: bool = False) -> tuple[dict[str, Split], list[str]]:
    """({split name: images (N, 3, side, side) uint8 with labels}, names of the classes).

    resize: what has another size is cut to its middle square and scaled; otherwise it is refused.
    """
    try:
        import datasets
        import PIL.Image  # noqa: F401, datasets cannot do without it here and does not bring it
    except ImportError as error:
        raise MissingExtraError(f"{data}: needs datasets and pillow; {error}. {install('train')}") from None
    local = Path(data).is_dir()
    try:
        tables = datasets.load_dataset("imagefolder", data_dir=data) if local else datasets.load_dataset(data)
    except Exception as error:  # datasets, the hub and the network each have their own
        must = "must hold one sub-folder of images for each class" if local else "must be a folder here or a hub id"
        raise UsageError(
            f"{data}: {must}; {first_line(error.__cause__ or error).rstrip('.')}. "
            "Check the name" + ("." if local else ", and that the network is there.")
        ) from error
    features = next(iter(tables.values())).features
    image = next((name for name, kind in features.items() if isinstance(kind, datasets.Image)), None)
    label = next((name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)), None)
    if image is None or label is None:
        raise UsageError(
            f"{data}: must give images with their classes; got the columns {', '.join(features) or 'none'}. "
            "In a folder, put the images into sub-folders, two or more, named by class."
        )
    splits = {}
    for name, table in tables.items():
        table = table.cast_column(image, datasets.Image(decode=False))  # decoded here, to name the file that fails
        pictures = [decode(row, f"{data}, {name} split, image {i}", side, resize) for i, row in enumerate(table[image])]
        labels = torch.tensor(list(table[label]), dtype=torch.int64)
        splits[name] = Split(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous(), labels)
    return splits, features[label].names


def decode(row: dict[str, Any], where: str, side: int, resize: bool) -> np.ndarray:
    """One image file, given by its path or its bytes -> (side, side, 3) uint8."""
    import PIL.Image
    import PIL.ImageOps

    source = row["path"] if row["bytes"] is None else io.BytesIO(row["bytes"])
    try:
        with PIL.Image.open(source) as file:  # reads the head alone
            if file.width * file.height > PIXELS:
                raise ValueError(f"{file.width} x {file.height} are more than {PIXELS:,} pixels")
            picture = file.convert("RGB")
    except Exception as error:  # pillow raises what the format's decoder does
        raise UsageError(
            f"{row['path'] or where}: must be an image that can be read; {type(error).__name__}: {error}. "
            "Take it away, or save it again."
        ) from error
    if picture.size != (side, side):
        if not resize:
            raise UsageError(f"{where}: must be {side} x {side} pixels; got {picture.width} x {picture.height}.")
        picture = PIL.ImageOps.fit(picture, (side, side), PIL.Image.Resampling.BILINEAR)
    return np.asarray(picture)
