"""Run a model and leave no trace of it: random state, buffers and modes are as before, also after an error.

A mode is a word among the attributes of a module, with the parts that the model has put in for it: BigBird turns to
full attention for good when a pass is short.
"""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from depthscope.traces.modules import modules_in


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Restore the random generators, the buffers of the model (running means, caches) and its modes on the way out."""
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
    modes = [(module, _words(module), dict(module._modules)) for module, _ in buffers]
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
        for module, words, parts in modes:
            vars(module).update(words)
            for name, part in parts.items():
                if module._modules.get(name) is not part:
                    module._modules[name] = part


def _words(module: nn.Module) -> dict[str, str]:
    return {name: value for name, value in vars(module).items() if type(value) is str}


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
