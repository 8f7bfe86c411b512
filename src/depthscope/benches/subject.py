"""The model of a cell and its inputs, on a device."""

from typing import Any

import torch
from torch import nn

from depthscope.benches.cell import Cell
from depthscope.errors import UsageError, first_line
from depthscope.models.resolve import resolve
from depthscope.models.sizes import Sizes
from depthscope.models.transformer import classic

FULL = {"output": True, "bias": True, "activation": "gelu"}  # all the matrices and biases that BERT and GPT-2 have


def subject(cell: Cell, device: torch.device, seed: int = 0) -> tuple[nn.Module, Any]:
    """Model and inputs of a cell: the reference encoder (post-norm) or decoder (pre-norm, causal), BERT or GPT-2.

    The random state of torch is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, inputs = _made(cell, seed)
    return model.eval().to(device), inputs.to(device)


def _made(cell: Cell, seed: int) -> tuple[nn.Module, Any]:
    sizes = Sizes(cell.depth, cell.width, cell.heads, cell.tokens, cell.batch, seed)
    if cell.kind in ("bert", "gpt2"):
        return resolve(cell.kind, sizes)
    wired = {"wiring": "pre_norm", "causal": True} if cell.kind == "decoder" else {"wiring": "post_norm"}
    model = classic(cell.depth, cell.width, cell.heads, **FULL, **wired)
    return model, torch.randn(cell.batch, cell.tokens, cell.width)


def device_called(name: str) -> torch.device:
    """The device of this name, or an error that names those that are here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        here += ["mps"] if torch.backends.mps.is_available() else []
        said = first_line(error).rstrip(".")
        raise UsageError(
            f"bench: the device must be one that works here; got {name!r} ({said}). Try --device {' or '.join(here)}."
        ) from None
    if device.type == "meta":
        raise UsageError("bench: the device must compute; got 'meta', which has shapes alone. Try --device cpu.")
    return device
