"""How a change meets a running model: at the ends of its blocks, or inside them.

Every way is a class with begin() and end() around a forward pass and remove() for good. `meets` is the handle, which
counts, and lets the change act on tokens.
"""

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from depthscope.errors import HookError
from depthscope.interventions.checkpoints import refuse_checkpointing, refuse_inner_checkpoint
from depthscope.interventions.open_ends import OpenEnds
from depthscope.interventions.passes import Pass
from depthscope.interventions.reruns import Reruns, in_backward, in_checkpoint
from depthscope.traces.events import Passage, StreamListener
from depthscope.traces.follower import INNER, following
from depthscope.traces.places import tokens_gave, tokens_given
from depthscope.traces.spans import Span
from depthscope.traces.tokens import replaced
from depthscope.traces.watcher import Watcher


class Meets(Protocol):
    """What a site needs of the handle."""

    model: nn.Module
    at: str
    surveying: bool
    reruns: Reruns

    @property
    def running(self) -> Pass | None: ...

    def resumes(self, again: Pass) -> None: ...

    def leaves(self) -> None: ...

    def enters(self, block: str) -> None: ...

    def fires(self, block: str) -> None: ...

    def fixed(self, block: str, tokens: Tensor) -> Tensor: ...

    def marked(self, hook: Callable[..., Any]) -> Callable[..., Any]: ...


def whole_block(span: Span) -> str | None:
    """The module that is a whole block."""
    return span.entry if span.entry == span.exit else None


class Site:
    """Hooks that tell the handle which blocks run, and nothing to do around a pass.

    A block that a checkpoint runs again in the backward pass is taken up as a part of its pass, between the hooks of
    one module (`within`).
    """

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        self.meets, self.spans = meets, spans
        self.handles: list[Any] = []
        for span in dict.fromkeys(span for span in spans if span.entry):
            entry = meets.model.get_submodule(span.entry)
            self.handles.append(entry.register_forward_pre_hook(meets.marked(self._entered(span))))
        modules = {path: meets.model.get_submodule(path) for path in map(self.within, spans) if path}
        for path, module in modules.items():
            hook = meets.marked(self._begins(path))
            self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        self._hook()
        for module in modules.values():  # after the hooks by which the site acts
            hook = meets.marked(self._left)
            self.handles.append(module.register_forward_hook(hook, with_kwargs=True, always_call=True))

    def _hook(self) -> None:
        """Set the hooks by which the site acts, where it has any."""

    def paths(self) -> set[str]:
        """The modules that must stay in their places for this to act."""
        named = {path for span in self.spans for path in (span.block, span.entry, span.exit, span.last)}
        return {path for path in named if path}

    def within(self, span: Span) -> str | None:
        """The module inside which all is done at this site; None where there is none, and no block may run again."""
        return None

    def _entered(self, span: Span) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            again = self.meets.running is None and in_backward() and self.within(span) is not None
            if not self.meets.surveying and not again:
                self.meets.enters(span.block)

        return hook

    def _begins(self, path: str) -> Callable[..., Any]:
        spans = [span for span in self.spans if self.within(span) == path]

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            meets, now = self.meets, self.meets.running
            if meets.surveying:
                return None
            if now is not None:
                tokens = tokens_given(module, args, kwargs) if now.has_gradients and in_checkpoint() else None
                if tokens is not None:
                    meets.reruns.keep(path, tokens, now)
                return None
            rerun = meets.reruns.find(path, tokens_given(module, args, kwargs)) if in_backward() else None
            if rerun is None:
                meets.enters(spans[0].block)  # an error
                return None
            meets.resumes(rerun.again.again())  # a copy: it may run more than once
            return self.begin_again(spans[min(rerun.number, len(spans) - 1)], module, args, kwargs)

        return hook

    def _left(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        now, reruns = self.meets.running, self.meets.reruns
        if now is None or not (now.is_rerun or reruns.is_open):
            return
        tokens = None if output is None else tokens_given(module, args, kwargs)
        reruns.gave(None if tokens is None else tokens_gave(module, output, tuple(tokens.shape)), now)
        if now.is_rerun:
            self.end()
            self.meets.leaves()

    def begin_again(self, span: Span, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """A block, whose module this is, begins to run again in the backward pass."""
        return None

    def see(self, args: tuple, kwargs: dict) -> None:
        """Called once, with the arguments of the first pass, before it begins."""

    def begin(self) -> None:
        """A forward pass begins."""

    def end(self) -> None:
        """A forward pass has ended, or failed."""

    def sites_met(self) -> list[str]:
        """Where a change can act in these blocks, as far as is known."""
        return [self.meets.at]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class AtEnds(Site):
    """block_in and block_out: hooks on the modules by which tokens enter and leave a block.

    A block that is no module ends with a sum in the code around it, which is watched for (open_ends.py).
    """

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        self.watcher: Watcher | None = None
        self.bare = True  # whether all modules gave their tokens and nothing else
        self.open = [span for span in dict.fromkeys(spans) if span.exit is None]
        if self.open and meets.at == "block_in":
            raise HookError(
                f"blocks must be modules for block_in; {self.open[0].block} of {type(meets.model).__name__} is none, "
                "its sums are in the code around it. Use at='block_out'."
            )
        super().__init__(meets, spans)

    def within(self, span: Span) -> str | None:
        return None if span.exit is None else span.entry if self.meets.at == "block_in" else span.exit

    def _hook(self) -> None:
        meets = self.meets
        for span in (span for span in dict.fromkeys(self.spans) if span.exit is not None):
            if meets.at == "block_in":
                hook = meets.marked(self._before(span.block))
                module = meets.model.get_submodule(span.entry)
                self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                hook = meets.marked(self._after(span.block))
                module = meets.model.get_submodule(span.exit)
                self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def _before(self, block: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if self.meets.surveying:
                return None
            swap = self._swap(block, tokens_given(module, args, kwargs))
            return swap(args), swap(kwargs)

        return hook

    def _after(self, block: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
            if self.meets.surveying:
                return None
            source = tokens_given(module, args, kwargs)
            self.bare &= isinstance(output, Tensor)
            swap = self._swap(block, tokens_gave(module, output, tuple(source.shape)) if source is not None else None)
            new = swap(output)
            if new is output:
                raise HookError(
                    f"a block must hand on its tokens where they can be exchanged; got {type(output).__name__}. "
                    "Use at='block_in'."
                )
            return new

        return hook

    def begin(self) -> None:
        if not self.open:
            return
        refuse_checkpointing(self.meets)
        for span in self.open:
            if not span.entry:
                self.meets.enters(span.block)
        self.watcher = Watcher(OpenEnds(self.meets.model, self.open, self.meets.fixed)).__enter__()

    def end(self) -> None:
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.__exit__(None, None, None)

    def _swap(self, block: str, tokens: Tensor | None) -> Callable[[Any], Any]:
        """A function that puts the changed tokens in the place of the tokens, wherever they are."""
        if tokens is None:
            raise HookError(
                f"a block must take and return tokens (B, n, d) for {self.meets}; it has none. Pass blocks=."
            )
        fixed = self.meets.fixed(block, tokens)
        return lambda value: replaced(value, tokens, fixed)


class AroundPass(Site):
    """A site that watches every block for the time of a pass."""

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.watcher: Any = None

    def listener(self) -> StreamListener:
        """What listens to the blocks."""
        raise NotImplementedError

    def within(self, span: Span) -> str | None:
        return whole_block(span)

    def begin(self) -> None:
        if not all(map(self.within, self.spans)):
            refuse_checkpointing(self.meets)
        self.watcher = following(self.meets.model, self.spans, self.listener()).__enter__()

    def begin_again(self, span: Span, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        self.watcher = following(self.meets.model, [span], self.listener(), running=module).__enter__()
        return self.watcher.began(args, kwargs)

    def end(self) -> None:
        if self.watcher is not None:
            watcher, self.watcher = self.watcher, None
            watcher.__exit__(None, None, None)


class Inside(AroundPass):
    """attn_in, sa_out, sa_sum, ffn_in, ffn_sum: the residual stream is followed through every block."""

    def __init__(self, meets: Any, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.met: set[str] = set()

    def listener(self) -> StreamListener:
        return _AtSite(self.meets, self.met)

    def sites_met(self) -> list[str]:
        return ["block_in", *(site for site in INNER if site in self.met), "block_out"]


class _AtSite(StreamListener):
    def __init__(self, meets: Meets, met: set[str]) -> None:
        self.meets, self.met = meets, met
        self.hears_everything = meets.at == "ffn_in"  # whatever reads the sum that attention has joined

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        self.met.add(name)
        if name != self.meets.at:
            return tokens
        refuse_inner_checkpoint(self.meets, [now.block])
        return self.meets.fixed(now.block, tokens)

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        """Refuse a block in which the site turned out to be another than it seemed, before anybody goes on with it."""
        wrong = {"attn_in": now.shares_reading, "ffn_in": now.aside or now.late}.get(self.meets.at, now.late)
        if wrong and tokens is not None:
            raise HookError(
                f"fix_: attention and feed-forward network must follow each other for {self.meets}; in {now.block} of "
                f"{type(self.meets.model).__name__} they read the same tokens side by side. Use block_in or block_out."
            )
