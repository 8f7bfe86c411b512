"""Run a model and leave no trace of it: random state and buffers are as before, also after an error."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the random generators and the buffers of the model (running means, caches) on the way out."""
    python_state = random.getstate()
    numpy_state = _numpy_state()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            import numpy as np

            np.random.set_state(numpy_state)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                kept = buffers.get(name)
                if kept is not None and kept.shape == buffer.shape and not torch.equal(kept, buffer):
                    buffer.copy_(kept)


def _numpy_state():
    """NumPy's global state, if the process has loaded NumPy at all."""
    import sys

    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None
