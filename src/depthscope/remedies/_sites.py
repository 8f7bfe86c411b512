"""The ways in which a remedy meets a running model: at the ends of blocks, inside them, in attention, in the weights.

Every way is a class with begin() and end() around a forward pass and remove() for good. `meets` is the fix, which
counts, keeps the remedies, and lets one act on tokens.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from depthscope.errors import HookError, UsageError
from depthscope.remedies._copies import Copies
from depthscope.remedies._values import Held, exactly, held_in
from depthscope.remedies._weight import matrices
from depthscope.traces.attend import Attend, SdpaCall
from depthscope.traces.look import Span
from depthscope.traces.stream import INNER, Follow
from depthscope.traces.tokens import first_tokens, tokens_out


class Meets(Protocol):
    """What a site needs of the fix."""

    model: nn.Module
    called: str
    at: str
    copies: Copies
    looking: bool

    @property
    def remedy(self) -> Any: ...

    def enters(self, block: str) -> None: ...

    def fires(self, block: str) -> None: ...

    def fixed(self, block: str, tokens: Tensor) -> Tensor: ...

    def marked(self, hook: Callable[..., Any]) -> Callable[..., Any]: ...


class Site:
    """Hooks that tell the fix which blocks run, and nothing to do around a pass."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        self.meets, self.spans = meets, spans
        self.handles: list[Any] = []
        for span in dict.fromkeys(spans):
            entry = meets.model.get_submodule(span.entry)
            self.handles.append(entry.register_forward_pre_hook(self._entered(span.block)))

    def _entered(self, block: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if not self.meets.looking:
                self.meets.enters(block)

        return hook

    def see(self, args: tuple, kwargs: dict) -> None:
        """Called once, with the arguments of the first pass, before it begins."""

    def begin(self) -> None:
        """A forward pass begins."""

    def end(self) -> None:
        """A forward pass has ended, or failed."""

    def sites_met(self) -> list[str]:
        """Where a remedy can act in these blocks, as far as is known."""
        return [self.meets.at]

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class AtEnds(Site):
    """block_in and block_out: hooks on the modules by which tokens enter and leave a block."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        for span in dict.fromkeys(spans):
            if meets.at == "block_in":
                hook = meets.marked(self._before(span.block))
                module = meets.model.get_submodule(span.entry)
                self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                hook = meets.marked(self._after(span.block))
                module = meets.model.get_submodule(span.exit)
                self.handles.append(module.register_forward_hook(hook, with_kwargs=True))

    def _before(self, block: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
            if self.meets.looking:
                return None
            swap = self._swap(block, first_tokens(args, kwargs))
            return tuple(map(swap, args)), {name: swap(value) for name, value in kwargs.items()}

        return hook

    def _after(self, block: str) -> Callable[..., Any]:
        def hook(_: nn.Module, args: tuple, kwargs: dict, output: Any) -> Any:
            if self.meets.looking:
                return None
            source = first_tokens(args, kwargs)
            swap = self._swap(block, tokens_out(output, tuple(source.shape)) if source is not None else None)
            if isinstance(output, Tensor):
                return swap(output)
            if type(output) in (tuple, list):
                return type(output)(map(swap, output))
            raise HookError(
                f"fix_: a block must return a tensor or a tuple for block_out; got {type(output).__name__}. "
                "Use at='block_in'."
            )

        return hook

    def _swap(self, block: str, tokens: Tensor | None) -> Callable[[Any], Any]:
        """A function that puts the remedied tokens in the place of the tokens, wherever they are."""
        if tokens is None:
            raise HookError(
                f"fix_: a block must take and return tokens (B, n, d) for {self.meets.remedy}; it has none. "
                "Pass blocks=."
            )
        fixed = self.meets.fixed(block, tokens)
        return lambda value: fixed if value is tokens else value


class Inside(Site):
    """attn_in, sa_out, sa_sum, ffn_in, ffn_sum: the residual stream is followed through every block."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.follow: Follow | None = None
        self.met: set[str] = set()

    def begin(self) -> None:
        if getattr(self.meets.remedy, "is_off", False):
            return
        refuse_checkpointing(self.meets)
        self.follow = Follow(self.meets.model, self.spans, self._act)
        self.follow.__enter__()

    def _act(self, block: str, site: str, tokens: Tensor) -> Tensor:
        self.met.add(site)
        return self.meets.fixed(block, tokens) if site == self.meets.at else tokens

    def end(self) -> None:
        if self.follow is not None:
            follow, self.follow = self.follow, None
            follow.__exit__(None, None, None)

    def sites_met(self) -> list[str]:
        return ["block_in", *(site for site in INNER if site in self.met), "block_out"]


class InAttention(Site):
    """attn: the first attention of a block is computed by the block's remedy."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.block: str | None = None  # that runs and has not attended yet
        self.attend: Attend | None = None
        for span in dict.fromkeys(spans):
            first, last = (meets.model.get_submodule(path) for path in (span.entry, span.exit))
            self.handles.append(first.register_forward_pre_hook(self._running(span.block)))
            self.handles.append(last.register_forward_hook(self._running(None), always_call=True))

    def _running(self, block: str | None) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self.block = block

        return hook

    @property
    def here(self) -> bool:
        return self.block is not None

    def begin(self) -> None:
        if self.meets.remedy.is_off:
            return
        refuse_checkpointing(self.meets)
        self.block = None
        self.attend = Attend(self)
        self.attend.__enter__()

    def end(self) -> None:
        for remedy in self.meets.copies:
            remedy.begin()
        if self.attend is not None:
            attend, self.attend = self.attend, None
            attend.__exit__(None, None, None)

    def from_qkv(self, q: Tensor, k: Tensor, v: Tensor, call: SdpaCall) -> Tensor:
        return self._own().from_qkv(q, k, v, call)

    def from_pattern(self, P: Tensor, visible: Tensor) -> Tensor:
        return self._own().from_pattern(P, visible)

    def _own(self) -> Any:
        block, self.block = str(self.block), None
        self.meets.fires(block)
        return self.meets.copies[block]


class InWeights(Site):
    """weights: for the time of a pass the model computes with other matrices."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.matrices = matrices(meets.model, [span.block for span in dict.fromkeys(spans)])

    def begin(self) -> None:
        if self.meets.remedy.is_off:
            return
        refuse_checkpointing(self.meets)
        refuse_sharding(self.meets)
        for matrix in self.matrices:
            matrix.put(self.meets.copies[matrix.path].weight(matrix.parameter))
        for span in self.spans:
            self.meets.fires(span.block)

    def end(self) -> None:
        for matrix in self.matrices:
            matrix.put_back()


class InValues(Site):
    """values: for the time of a pass the model computes with another W_V and W_O."""

    def __init__(self, meets: Meets, spans: list[Span]) -> None:
        super().__init__(meets, spans)
        self.held: dict[str, Held] = {}

    def see(self, args: tuple, kwargs: dict) -> None:
        if self.meets.remedy.is_off:
            return
        refuse_sharding(self.meets)
        blocks = [span.block for span in dict.fromkeys(self.spans) if self.meets.copies[span.block].acts]
        try:
            with torch.inference_mode(False), exactly(self.meets.model):  # what is found is used with gradients later
                self.held = held_in(self.meets.model, blocks, args, kwargs)
                for block, held in self.held.items():
                    self.meets.copies[block].start_(*held.own(), held.heads)
        except BaseException:
            self.remove()  # the next pass looks again
            raise

    def begin(self) -> None:
        if self.meets.remedy.is_off:
            return
        refuse_checkpointing(self.meets)
        refuse_sharding(self.meets)
        with exactly(self.meets.model):
            for block, held in self.held.items():
                held.put(*self.meets.copies[block].values(*held.own(), held.heads))
        for span in self.spans:
            self.meets.fires(span.block)

    def end(self) -> None:
        for held in self.held.values():
            held.put_back()


def site_of(at: str) -> type[Site]:
    """The way that belongs to the name of a site."""
    ways = {"attn": InAttention, "weights": InWeights, "values": InValues}
    return {"block_in": AtEnds, "block_out": AtEnds, **ways}.get(at, Inside)


def refuse_checkpointing(meets: Meets) -> None:
    """Activations that are computed again in the backward pass would be computed without the remedy."""
    modules = meets.model.modules()
    if (
        torch.is_grad_enabled()
        and meets.model.training
        and any(getattr(m, "gradient_checkpointing", 0) for m in modules)
    ):
        raise UsageError(
            f"{meets.called}: {meets.remedy} at {meets.at} must be there in the backward pass too; with gradient "
            "checkpointing blocks run again without it. Use at='block_out' where fix_ can, or turn checkpointing off."
        )


def refuse_sharding(meets: Meets) -> None:
    """Weights that are cut over processes are gathered after a pass has begun, in the place of the remedy's."""
    if any(hasattr(parameter, "device_mesh") for parameter in meets.model.parameters()):  # a DTensor
        raise UsageError(
            f"{meets.called}: weights must be whole for {meets.remedy} at {meets.at}; those of "
            f"{type(meets.model).__name__} are cut over processes (FSDP). Use DDP, which copies the model."
        )
