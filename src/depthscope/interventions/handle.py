"""A change in place: what fix_ and without_ return. It acts in every forward pass and can be undone."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import HookError, UsageError
from depthscope.interventions.blocks import Blocks
from depthscope.interventions.compiled import compiles_around, eager_calls, wrappers_around
from depthscope.interventions.graphs import Forward, OneGraph, is_exporting
from depthscope.interventions.hooks import Hook
from depthscope.interventions.passes import Pass
from depthscope.interventions.reruns import Reruns, in_backward
from depthscope.interventions.turns import Turn
from depthscope.interventions.under_way import UnderWay
from depthscope.traces.entry import Entry
from depthscope.traces.slow_path import slow_path


class Handle(Blocks):
    """A change of all blocks of a model. A context manager; undo() takes it out and the model computes as before."""

    called: str  # by users, in what is said to them
    at: str

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.set_up()

    def set_up(self) -> None:
        """Begin to act on the model, of which nothing is known yet."""
        entry = self.entry
        self.model, self.notes = entry.model, list(entry.notes)
        Forward.take_out(self.model)
        self.know_nothing()
        self.fired, self.gone, self._turn = 0, False, Turn()
        self.on_change: Callable[[Tensor, Tensor], None] | None = None  # told of tokens before and after, by a scan
        self._pass: Pass | None = None  # the one that is running
        self.reruns = Reruns()
        self._undo = ExitStack()
        for handle in (
            self.model.register_forward_pre_hook(Hook(self, "_start"), with_kwargs=True),
            self.model.register_forward_hook(Hook(self, "_end"), with_kwargs=True, always_call=True),
        ):
            self._undo.callback(handle.remove)
        self._undo.enter_context(eager_calls(self.model, entry.wrappers or wrappers_around(self.model)))
        self.graph: OneGraph | None = None  # where it is compiled with the model

    # what kinds of change are asked

    @property
    def is_off(self) -> bool:
        """Whether it does nothing, for certain."""
        return False

    def opened(self, args: tuple, kwargs: dict) -> Pass:
        """What is known of a pass when it begins."""
        self.prepare(args, kwargs)
        return Pass()

    def exported(self, args: tuple, kwargs: dict) -> Pass:
        """A pass that torch.export writes down: there are no numbers to look at, all must be known by now."""
        if self._survey is None or not self._standing.holds():
            raise UsageError(
                f"{type(self.model).__name__} must have run once with {self} before it is exported, so that its blocks "
                "are known. Call it with the same inputs, model(...), then torch.export.export."
            )
        return Pass(in_graph=True)

    def ended(self, done: Pass, output: Any) -> None:
        """A pass has ended well."""

    # for users

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Take the change out."""
        self.gone = True
        for other in self.others:
            other.undo()
        self._undo.close()
        self.close()
        if self._site is not None:
            self._site.remove()

    def marked(self, hook: Callable[..., Any]) -> Hook:
        """A hook of this change, for a module of the model."""
        return Hook(self, hook)

    # one forward pass

    def _start(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.gone or (self.surveying and self._turn.is_mine):
            return
        if model is not self.model:
            raise UsageError(
                f"{self} belongs to another model, of which this {type(model).__name__} is a shallow copy. "
                f"Take copy.deepcopy(model), or copy the plain model and call {self.called} on the copy."
            )
        if self.is_interrupted():
            self.close()
        mine = self._turn.take()
        depth = self._turn.depth - 1
        if not mine or self._pass is not None:
            if mine:
                self._turn.leave(depth)
            raise UsageError(
                f"one forward pass must end before the next; {self} was still in one. Threads need a copy of the model "
                "each, copy.deepcopy(model); a model may not call itself."
            )
        watchers = torch._C._len_torch_function_stack()
        try:
            begun = self._open(model, args, kwargs)
        except BaseException:
            self.close()
            self._turn.leave(depth)
            raise
        begun.call = UnderWay()
        for place in range(watchers, torch._C._len_torch_function_stack()):
            torch._C._get_function_stack_at(place).is_over = begun.call.is_over

    def _open(self, model: nn.Module, args: tuple, kwargs: dict) -> Pass:
        self._refuse_compiled()
        self.reruns.forget_dead()
        known = list(self.others)
        self._pass = self.exported(args, kwargs) if is_exporting() else self.opened(args, kwargs)
        for other in (one for one in self.others if one not in known):
            other.begins_late(model, args, kwargs)
        if not self.is_off:
            self._pass.paths.enter_context(slow_path())
            self._site.begin()  # type: ignore[union-attr]
        return self._pass

    def is_interrupted(self) -> bool:
        """Whether a pass of this thread was left from outside, so that no hook told of its end."""
        now = self._pass
        return now is not None and self._turn.is_mine and now.call is not None and now.call.is_over()

    def _refuse_compiled(self) -> None:
        if compiles_around() and not is_exporting():
            raise UsageError(
                f"{type(self.model).__name__} was compiled after {self.called}, or around it: what torch.compile makes "
                f"does not call its hooks. Undo, compile, then change the compiled model: compiled = "
                f"torch.compile(model); ds.{self.called}(compiled, ...)."
            )

    def _end(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.surveying or self._pass is None or not self._turn.is_mine:
            return
        done = self.close()
        if output is None or self.is_off:  # the pass failed, or there is nothing to check
            return
        if not done.in_graph:
            self.ended(done, output)
        idle = sorted(done.entered - done.fired)
        if idle or not done.entered:
            for other in self.others:
                other.close()  # one error is enough
            raise HookError(self.unmet(idle))

    def close(self) -> Pass:
        """End the pass: everything as before it."""
        held = self._pass is not None and not self._pass.is_rerun
        done, self._pass = self._pass or Pass(), None
        if done.call is not None:
            done.call.forget()
        if self._site is not None:
            self._site.end()
        done.paths.close()
        if held:
            self._turn.leave(self._turn.depth - 1)  # last: others may begin now
        return done

    # what a site asks and tells

    @property
    def has_gradients(self) -> bool:
        """Whether the pass that runs may be followed by a backward pass."""
        return self._pass is not None and self._pass.has_gradients

    def enters(self, block: str) -> None:
        """A block begins to run."""
        if self._pass is not None:
            self._pass.entered.add(block)
            return
        again = " again in a backward pass, with tokens that no pass of the model is known for" * in_backward()
        raise HookError(
            f"{self} acts while {type(self.model).__name__} is called; {block} ran by itself{again}. Fix the module "
            "that you call (an encoder, for example); checkpoints must be around whole blocks that are modules, and "
            "hand them the tokens that they kept."
        )

    @property
    def running(self) -> Pass | None:
        """The pass that runs."""
        return self._pass

    def resumes(self, again: Pass) -> None:
        """A block runs again in the backward pass, as a part of a pass that is over."""
        again.thread = threading.get_ident()
        self._pass = again

    def leaves(self) -> None:
        """The block that ran again has ended."""
        self._pass = None

    def fires(self, block: str) -> None:
        """The change acts in a block."""
        if self._pass is not None and self._pass.is_rerun:
            return
        self.fired += 1
        if self._pass is not None:
            self._pass.fired.add(block)

    def fails(self, block: str) -> None:
        """The change could not act in a block."""
        if self._pass is not None:
            self._pass.fired.discard(block)

    def fixed(self, block: str, tokens: Tensor) -> Tensor:
        """What the change makes of the tokens at its site, in the model's own order of axes."""
        raise NotImplementedError
