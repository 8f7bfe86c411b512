"""Run a model and leave no trace of it: random state and buffers are as before, also after an error."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from depthscope.traces.modules import modules_in


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the random generators and the buffers of the model (running means, caches) on the way out."""
    python_state = random.getstate()
    numpy_state = _numpy_state()
    buffers = [
        (
            module,
            {name: (buffer, _copied(buffer)) for name, buffer in module._buffers.items()},
        )
        for module in modules_in(model).values()
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
            # of checkpoints, in passes that are made without gradients
            warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
            yield
    finally:
        random.setstate(python_state)
        if numpy_state is not None:
            import numpy as np

            np.random.set_state(numpy_state)
        for module, kept in buffers:
            _put_back(module, kept)


def _copied(buffer: Tensor | None) -> Tensor | None:
    """Its numbers; None where it has none: an offloaded buffer is brought anew for every pass."""
    return None if buffer is None or buffer.is_meta else buffer.clone()


def _put_back(module: nn.Module, kept: dict[str, tuple[Tensor | None, Tensor | None]]) -> None:
    """The same buffer tensors with the same values; what a forward pass added is taken away."""
    for name in list(module._buffers):
        if name not in kept:
            del module._buffers[name]
    for name, (buffer, values) in kept.items():
        module._buffers[name] = buffer
        if buffer is None or values is None or (buffer.shape == values.shape and torch.equal(buffer, values)):
            continue
        with torch.no_grad():
            buffer.data = values


def _numpy_state():
    """NumPy's global state, if the process has loaded NumPy at all."""
    import sys

    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None
