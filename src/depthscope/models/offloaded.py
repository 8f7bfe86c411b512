"""A Hugging Face model that need not fit in memory: weights stay in their files until a module runs (accelerate)."""

import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from torch import nn

from depthscope.errors import MissingExtraError, UsageError
from depthscope.extras import install

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
SHARE = 0.5  # of the free memory that weights may take: the other half is for activations and what is brought in


def number_of_bytes(text: str) -> int:
    """2GB, 500 MB or plain bytes as a number."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", text.lower())
    if found is None:
        raise UsageError(f"--memory: must be a size such as 2GB or 500MB; got {text!r}.")
    return int(float(found[1]) * UNITS[found[2]])


def is_too_large(folder: str) -> bool:
    """Whether the weights in a local folder are more than the memory that is free."""
    files = [*Path(folder).glob("*.safetensors")] or [*Path(folder).glob("*.bin")]  # of two forms one is read
    size = sum(file.stat().st_size for file in files)
    free = free_memory()
    return free is not None and size > free


def free_memory() -> int | None:
    """Bytes that a process can still take; None where nobody tells (accelerate brings psutil)."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def load_offloaded(name: str, folder: str | None, memory: int | None, **options: Any) -> nn.Module:
    """transformers.AutoModel with weights up to `memory` bytes at hand (half of what is free where it is None).

    The others stay in the files of the model where they are safetensors, and are else written to the folder: one that
    goes with the model where it is None.
    """
    try:
        import accelerate  # noqa: F401
        import transformers
    except ImportError:
        raise MissingExtraError(f"{name}: --offload needs accelerate. {install('hf', 'train')}") from None
    most = memory if memory is not None else int(SHARE * (free_memory() or 0))
    own = tempfile.mkdtemp(prefix="depthscope-offload-") if folder is None else None
    place = Path(folder or str(own))
    place.mkdir(parents=True, exist_ok=True)
    try:
        model = transformers.AutoModel.from_pretrained(
            name, device_map="auto", max_memory={"cpu": most}, offload_folder=str(place), **options
        )
    except BaseException:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
        raise
    if own is not None:
        weakref.finalize(model, shutil.rmtree, own, ignore_errors=True)
    return model
