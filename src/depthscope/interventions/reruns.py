"""Blocks that run again in the backward pass, as activation checkpoints make them: each as it ran in its own pass.

A checkpoint calls a block a second time, from the backward pass, with the tokens that it kept instead of everything
else. These tokens tell which pass the block is of: they are the same memory, and as long as the checkpoint holds it
nobody else can have it. What the pass knew is kept as long as they live: its padding, what came before, its form.
Where two passes that differ in this were given the very same tokens, nothing tells them apart, and that is an error.
"""

import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from depthscope.errors import HookError
from depthscope.interventions.passes import Pass

FILES = {torch.utils.checkpoint.__file__, torch.autograd.function.__file__}  # others checkpoint by a Function


@dataclass(eq=False)
class Rerun:
    """A call of a block that may come again.

    module: its path. number: which call of the module it was in the pass, from 0. then: the call that was given what
    this one gave, as in a checkpoint around several blocks.
    """

    again: Pass
    module: str
    number: int
    then: "Rerun | None" = None


class Reruns:
    """Of one change: every call of a block that some checkpoint may repeat."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[StorageWeakRef, list[Rerun]]] = {}  # by module and address of tokens
        self._open: Rerun | None = None  # the call that runs, for the first time or again
        self._gave: tuple[int, Rerun] | None = None  # where the tokens lie that the last call of a pass gave

    def keep(self, module: str, tokens: Tensor, now: Pass) -> None:
        """A module is given these tokens in the pass that runs, inside a checkpoint."""
        now.calls[module] += 1
        self._open = Rerun(now.again(), module, now.calls[module] - 1)
        self._put(tokens, self._open)
        if self._gave is not None and self._gave[0] == tokens.data_ptr():
            self._gave[1].then = self._open

    @property
    def is_open(self) -> bool:
        """Whether a module runs that was told of."""
        return self._open is not None

    def gave(self, tokens: Tensor | None, now: Pass) -> None:
        """The module that was told of last has given these tokens; None where it failed, or was stopped."""
        call, self._open = self._open, None
        if call is None or tokens is None:
            return
        if not now.is_rerun:
            self._gave = tokens.data_ptr(), call
        elif call.then is not None:
            self._put(tokens, call.then)

    def _put(self, tokens: Tensor, call: Rerun) -> None:
        key, calls = (call.module, tokens.data_ptr()), [call]
        known, others = self._kept.get(key, (None, []))
        if known is not None and not known.expired():
            calls += [one for one in _different(others) if one is not call]
        self._kept[key] = StorageWeakRef(tokens.untyped_storage()), calls

    def find(self, module: str, tokens: Tensor | None) -> Rerun | None:
        """The call that this one repeats; None where it is not known, as when the tokens were moved meanwhile."""
        if tokens is None or not tokens.data_ptr():  # 0: tensors without memory of their own
            return None
        known, calls = self._kept.get((module, tokens.data_ptr()), (None, []))
        if known is None or known.expired():
            return None
        self._open, *others = _different(calls)
        if others:
            raise HookError(
                f"a block that runs again in the backward pass must be of one pass; {module} was given the very same "
                "tokens by several, with other padding or another form. Give each pass a tensor of its own, x.clone()."
            )
        return self._open

    def forget_dead(self) -> None:
        """Drop what no checkpoint holds any more."""
        self._open = self._gave = None
        self._kept = {key: kept for key, kept in self._kept.items() if not kept[0].expired()}


def _different(calls: list[Rerun]) -> list[Rerun]:
    """One of all calls that would run alike."""
    found: list[Rerun] = []
    for call in calls:
        if not any(call.number == one.number and call.again.is_like(one.again) for one in found):
            found.append(call)
    return found


def in_backward() -> bool:
    """Whether a backward pass is running, in this thread."""
    return torch._C._current_graph_task_id() != -1


def in_checkpoint() -> bool:
    """Whether some checkpoint is among the functions that are running."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in FILES:
            return True
        frame = frame.f_back
    return False
