"""Compiled code stands aside while a model is watched: torch.compile would compile what the watcher does."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

COMPILES = ("torch._dynamo", "torch.nn.attention.flex_attention")  # flex_attention compiles itself when it is called


def eagerly() -> AbstractContextManager[Any]:
    """While entered, what torch.compile has made runs its own Python; nothing where nobody can have compiled anything.

    torch._dynamo is loaded by whoever compiles, and slow to load.
    """
    loaded = any(name in sys.modules for name in COMPILES)
    return torch.compiler.set_stance("force_eager") if loaded else nullcontext()
