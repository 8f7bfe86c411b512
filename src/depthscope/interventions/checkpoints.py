"""Activation checkpoints that cannot work: what they run again in the backward pass would run without the change.

A checkpoint around whole blocks is seen by the hooks of the blocks, in the backward pass too (reruns.py). One inside a
block, around its attention alone, is not; it is found on the way in, among the functions that are running.
"""

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from depthscope.errors import UsageError
from depthscope.interventions.reruns import FILES
from depthscope.traces.operations import Operation

ADVICE = "Use at='block_out' where fix_ can, checkpoint whole blocks, or turn checkpointing off."


def refuse_checkpointing(meets: Any) -> None:
    """Refuse a model that says of itself that its blocks are checkpointed."""
    modules = meets.model.modules()
    if (
        torch.is_grad_enabled()
        and meets.model.training
        and any(getattr(m, "gradient_checkpointing", 0) for m in modules)
    ):
        raise UsageError(
            f"{meets} must be there in the backward pass too; with gradient checkpointing blocks run again without it. "
            f"{ADVICE}"
        )


def refuse_inner_checkpoint(meets: Any, blocks: Iterable[str]) -> None:
    """Refuse to act where a checkpoint inside one of the blocks would compute the same again without the change."""
    if meets.has_gradients and _is_inside_checkpoint(meets.model, [meets.model.get_submodule(b) for b in blocks]):
        raise UsageError(
            f"{meets} must be there in the backward pass too; a block of {type(meets.model).__name__} checkpoints a "
            f"part of itself, which would run again without it and give wrong gradients. {ADVICE}"
        )


def _is_inside_checkpoint(model: nn.Module, blocks: list[nn.Module]) -> bool:
    """Whether a checkpoint was begun after the block that is running now, or after the model where no block is."""
    frame, found = sys._getframe(1), False
    while frame is not None:
        if frame.f_code.co_filename in FILES:
            found = True
        elif frame.f_code.co_name == "_call_impl":
            running = frame.f_locals.get("self")
            if running is model or any(running is block for block in blocks):
                return found
        frame = frame.f_back  # type: ignore[assignment]
    return found


class CheckpointGuard:
    """A listener that refuses checkpoints around matrices, for a change of the matrices themselves."""

    everything = False

    def __init__(self, meets: Any, blocks: list[str]) -> None:
        self.meets, self.blocks = meets, blocks

    def modules(self) -> tuple:
        return ()

    def closed(self, failed: bool) -> None: ...

    def operation(self, op: Operation) -> Any:
        if op.role in ("matrix", "weights", "attention"):
            refuse_inner_checkpoint(self.meets, self.blocks)
        return op.run()
