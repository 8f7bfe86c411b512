"""A change in place: what fix_ and without_ return. It acts in every forward pass and can be undone."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from depthscope.errors import DepthscopeError, HookError, UsageError, name_caller
from depthscope.interventions.compiled import eager_calls
from depthscope.interventions.graphs import OneGraph
from depthscope.interventions.passes import Pass
from depthscope.interventions.reruns import Reruns, in_backward
from depthscope.interventions.sites import Site
from depthscope.traces.entry import Entry, run_model
from depthscope.traces.operations import is_norm
from depthscope.traces.slow_path import slow_path
from depthscope.traces.spans import Span
from depthscope.traces.sure_survey import sure_survey
from depthscope.traces.survey import Surveyed
from depthscope.traces.tokens import Layout


class Handle:
    """A change of all blocks of a model. A context manager; undo() takes it out and the model computes as before."""

    called: str  # by users, in what is said to them
    at: str

    def __init__(self, entry: Entry) -> None:
        self.entry, self.model, self.notes = entry, entry.model, list(entry.notes)
        self.others: list[Handle] = []  # of the other streams, where the model has several
        self.fired, self.surveying = 0, False
        self.on_change: Callable[[Tensor, Tensor], None] | None = None  # told of tokens before and after, by a scan
        self._survey: Surveyed | None = None
        self._site: Site | None = None
        self._pass: Pass | None = None  # the one that is running
        self.reruns = Reruns()
        self._undo = ExitStack()
        for handle in (
            self.model.register_forward_pre_hook(self.marked(self._start), with_kwargs=True),
            self.model.register_forward_hook(self.marked(self._end), with_kwargs=True, always_call=True),
        ):
            self._undo.callback(handle.remove)
        self._undo.enter_context(eager_calls(self.model, entry.wrappers))
        self.graph: OneGraph | None = None  # where it is compiled with the model

    # what kinds of change are asked

    @property
    def is_off(self) -> bool:
        """Whether it does nothing, for certain."""
        return False

    def site(self, spans: list[Span]) -> Site:
        """The way in which it meets the blocks."""
        raise NotImplementedError

    def like(self, entry: Entry) -> "Handle":
        """The same change for another stream of the model."""
        raise NotImplementedError

    def opened(self, args: tuple, kwargs: dict) -> Pass:
        """What is known of a pass when it begins."""
        self.prepare(args, kwargs)
        return Pass()

    def ended(self, done: Pass, output: Any) -> None:
        """A pass has ended well."""

    def unmet(self, idle: list[str]) -> str:
        """What to say when it did not act in these blocks."""
        raise NotImplementedError

    # for users

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Take the change out."""
        for other in self.others:
            other.undo()
        self._undo.close()
        self._close()
        if self._site is not None:
            self._site.remove()

    def marked(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that a scan can recognise, and that names who was called in what it raises."""

        def call(*args: Any) -> Any:
            if self.graph is not None and self.graph.tracing:
                return None  # the model's code is being compiled, or was: hooks of the graph act in it
            try:
                return hook(*args)
            except DepthscopeError as error:
                name_caller(error, self.called)
                raise

        call.depthscope_fix = self  # type: ignore[attr-defined]
        return call

    # before the first pass

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Survey the model once: its streams, their blocks, and where their tokens lie.

        The change acts in the first stream; for every other one there is a change of its own. Blocks that the user
        names are changed by one, whatever streams they are of.
        """
        if self._survey is not None:
            return
        self.surveying = True
        try:
            with slow_path():
                entry = self.entry
                asked = entry.chosen(), args, kwargs, entry.stream
                found = run_model(self.model, lambda: sure_survey(self.model, *asked))
        finally:
            self.surveying = False
        found = found.only(self.entry.stream)
        first, *others = found.streams if self.entry.blocks is None else [found.joined()]
        named = {path for path, _ in self.model.named_modules()}
        functional = next((span.block for span in first.spans if span.block not in named), None)
        if functional is not None:
            raise HookError(
                f"blocks must hold modules to be changed; those of {type(self.model).__name__} are made of functions "
                "alone. A scan measures them; put their weights into modules to change them."
            )
        self._site = self.site(first.spans)
        lost = sorted(path for path in self.entry.chosen() or () if self._is_lost(path, first.paths))
        if lost:
            raise HookError(self.unmet(lost))
        self._site.see(args, kwargs)
        self._survey = first  # last, so that a pass after a refusal is refused again
        for other in others:
            self.others.append(self.like(replace(self.entry, stream=other.name)))

    def _is_lost(self, path: str, found: list[str]) -> bool:
        """Whether a module that the user names is no block, nor a part of one, nor a norm between them."""
        near = any(one == path or one.startswith(path + ".") or path.startswith(one + ".") for one in found)
        return not near and not is_norm(self.model.get_submodule(path))

    @property
    def prepared(self) -> bool:
        """Whether the model was surveyed."""
        return self._survey is not None

    @property
    def blocks(self) -> list[str]:
        """The paths of the blocks, as far as they are known: before the first pass, those that the user named."""
        if self._survey is not None:
            return list(dict.fromkeys(span.block for span in self._survey.spans))
        return sorted(self.entry.chosen() or ())

    @property
    def axis(self) -> int:
        """Along which axis the tokens lie."""
        return 1 if self._survey is None else self._survey.axis

    def layout(self, block: str, axes: int) -> Layout:
        """Where the tensors of a block have their tokens, of so many axes: with a batch or without."""
        known = Layout((1,), 2) if self._survey is None else self._survey.layouts[block]
        if {axes, known.channels + 1} <= {2, 3} and known.channels + 1 != axes:
            return Layout((axes - 2,), axes - 1)
        return known

    def check_width(self, block: str, width: int) -> None:
        """Refuse to act on a tensor that is not what the survey saw at the end of a block."""
        known = width if self._survey is None else self._survey.widths.get(block, width)
        if width != known:
            raise HookError(
                f"the tokens of {block} must have {known} channels, as in the survey; got {width} along that axis. The "
                f"model turns them at {self.at!r}. Use another site, or blocks= with modules that are called."
            )

    # one forward pass

    def _start(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.surveying:
            return
        if model is not self.model:
            raise UsageError(
                f"{self} belongs to another model, of which this {type(model).__name__} is a copy. "
                f"Take the hooks off by copying the plain model, and call {self.called} on the copy."
            )
        self._refuse_second_pass()
        self.reruns.forget_dead()
        known = len(self.others)
        self._pass = self.opened(args, kwargs)
        for other in self.others[known:]:
            other._start(model, args, kwargs)  # its hook on the model was set after this pass had begun
        if not self.is_off:
            self._pass.paths.enter_context(slow_path())
            self._site.begin()  # type: ignore[union-attr]

    def _refuse_second_pass(self) -> None:
        if self._pass is None:
            return
        if self._pass.thread == threading.get_ident():
            self._close()  # of a pass that was interrupted
        raise UsageError(
            f"one forward pass must end before the next; {self} was still in one. Where the last was interrupted, run "
            "again; threads need a copy of the model each; a model may not call itself."
        )

    def _end(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.surveying or self._pass is None:
            return
        done = self._close()
        if output is None or self.is_off:  # the pass failed, or there is nothing to check
            return
        self.ended(done, output)
        idle = sorted(done.entered - done.fired)
        if idle or not done.entered:
            for other in self.others:
                other._close()  # one error is enough
            raise HookError(self.unmet(idle))

    def _close(self) -> Pass:
        """End the pass: everything as before it."""
        done, self._pass = self._pass or Pass(), None
        if self._site is not None:
            self._site.end()
        done.paths.close()
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
