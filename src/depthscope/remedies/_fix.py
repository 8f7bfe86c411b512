"""fix_: a remedy put into a model at a named site, in place and undoable."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.errors import CausalLeakError, HookError, UnknownNameError, UsageError
from depthscope.registry import unknown
from depthscope.remedies._attention import AttentionRemedy
from depthscope.remedies._described import rebuilt
from depthscope.remedies._memory import Memory, most_remembered, name_in, tokens_in, without_segments
from depthscope.remedies._pass import Pass, slow_path
from depthscope.remedies._places import settled
from depthscope.remedies._remedy import Remedy
from depthscope.remedies._sites import Site, site_of
from depthscope.remedies._values import ValueRemedy
from depthscope.remedies._weight import WeightRemedy
from depthscope.traces.attention import no_modes
from depthscope.traces.blocks import blocks_by_name
from depthscope.traces.inputs import named_arguments, padding_in
from depthscope.traces.look import Looked, Span, look

TOKEN_SITES = ("block_in", "attn_in", "sa_out", "sa_sum", "ffn_in", "ffn_sum", "block_out")
# sites that only one kind of remedy can act at
KINDS = {"attn": AttentionRemedy, "weights": WeightRemedy, "values": ValueRemedy}
SITES = (*TOKEN_SITES, *KINDS)
CAUSAL = ("auto", "yes", "no", "leak")


class Fix:
    """A remedy in place. A context manager; undo() takes it out again and the model computes as before."""

    called = "fix_"  # by users, in what is said to them

    def __init__(
        self, model: nn.Module, remedy: nn.Module, at: str, blocks: list[str], causal: str, group: Any
    ) -> None:
        self.model, self.at, self.blocks, self.causal, self.group = model, at, blocks, causal, group
        self.copies = settled(model, remedy, at, blocks)
        self.fired, self.looking = 0, False
        self.on_change: Callable[[Tensor, Tensor], None] | None = None  # told of tokens before and after, by a scan
        self._looked: Looked | None = None
        self._site: Site | None = None
        self._memory = Memory(name_in(model, type(remedy).__name__, at), len(blocks), group is not None)
        self._pass: Pass | None = None  # the one that is running
        self._padded = False  # whether the last one had padding
        self._handles: list[Any] = [
            model.register_forward_pre_hook(self.marked(self._start), with_kwargs=True),
            model.register_forward_hook(self.marked(self._end), with_kwargs=True, always_call=True),
        ]

    def __repr__(self) -> str:
        return f"{self.remedy} at {self.at}{' (LEAKS the future)' * self.leaks}"

    @property
    def remedy(self) -> Any:
        """The remedy, in the form that is used; where it learns, what it started as."""
        return self.copies.one

    @property
    def is_off(self) -> bool:
        return getattr(self.remedy, "is_off", False)

    @property
    def remembers(self) -> bool:
        """Whether it must know of the tokens in a cache."""
        return not self.is_off and not isinstance(self.remedy, WeightRemedy | ValueRemedy)

    @property
    def leaks(self) -> bool:
        """Whether tokens are shown their future, because the user insisted."""
        return self.causal == "leak" and not getattr(self.remedy, "causal_safe", False)

    def __enter__(self) -> "Fix":
        return self

    def __exit__(self, *error: Any) -> None:
        self.undo()

    def undo(self) -> None:
        """Take the remedy out, and what it has learned with it."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._close()
        if self._site is not None:
            self._site.remove()
        self.copies.remove()

    def describe(self) -> dict[str, Any]:
        """The fix as plain data, which fix_ accepts in place of a remedy; what was learned is in the state dict."""
        settings = getattr(self.remedy, "settings", None)
        if settings is None:
            raise UsageError(f"{self.called}: {type(self.remedy).__name__} has no settings() and cannot be described.")
        return {
            "remedy": type(self.remedy).__name__,
            "settings": settings(),
            "at": self.at,
            "blocks": list(self.blocks),
            "causal": self.causal,
        }

    def marked(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """A hook that a scan can recognise as a remedy."""

        def call(*args: Any) -> Any:
            return hook(*args)

        call.depthscope_fix = self  # type: ignore[attr-defined]
        return call

    # before the first pass

    def prepare(self, args: tuple, kwargs: dict) -> None:
        """Look once: which blocks run, which axis holds the tokens, would the remedy show them their future?"""
        if self._looked is not None:
            return
        args, kwargs = without_segments(args, kwargs)
        self.looking = True
        try:
            with slow_path():
                mask = padding_in(self.model, args, kwargs, self.blocks)
                looked = look(self.model, self.blocks, args, kwargs, mask)
        finally:
            self.looking = False
        if looked.missing:
            raise HookError(
                f"{self.called}: every block must run on tokens (B, n, d) when {type(self.model).__name__} is called; "
                f"{', '.join(looked.missing[:3])} did not. Pass blocks= with modules that are called, and a batch axis."
            )
        if self.causal != "leak":
            self._hide_the_future({"yes": True, "no": False}.get(self.causal, looked.causal))
        self._site = self.site(looked.spans)
        self._site.see(args, kwargs)
        self._looked = looked  # last, so that a pass after a refusal is refused again

    def site(self, spans: list[Span]) -> Site:
        """The way in which it meets the blocks."""
        return site_of(self.at)(self, spans)

    def _hide_the_future(self, causal: bool | None) -> None:
        """Take the causal form of the remedy for a causal model; None: nobody knows whether it is one."""
        if getattr(self.remedy, "causal_safe", False) or causal is False:
            return
        if causal is None:
            raise CausalLeakError(
                f"fix_: {self.remedy} uses all tokens, and no self-attention of {type(self.model).__name__} over two "
                'tokens or more was seen that would tell whether it is causal. Pass causal="no" or causal="yes".'
            )
        if not hasattr(self.remedy, "causal_form"):
            raise CausalLeakError(
                f"fix_: {type(self.model).__name__} is causal, and {type(self.remedy).__name__} does not say whether "
                'it shows tokens their future. Give it causal_safe = True if it does not, or pass causal="leak".'
            )
        self.copies.become(lambda remedy: remedy.causal_form())

    # one forward pass

    def _start(self, model: nn.Module, args: tuple, kwargs: dict) -> None:
        if self.looking:
            return
        if model is not self.model:
            raise UsageError(
                f"{self.called}: {self} belongs to another model, of which this {type(model).__name__} is a copy. "
                f"Take the hooks off by copying the plain model, and call {self.called} on the copy."
            )
        self._refuse_second_pass()
        given, arguments = (*args, *kwargs.values()), named_arguments(self.model, args, kwargs)[0]
        past = self._memory.recall(given, arguments, self.remedy) if self.remembers else None
        self.prepare(args, kwargs)
        mask = padding_in(self.model, args, kwargs, self.blocks)
        if self.group is None and mask is not None and bool(mask.all()):
            mask = None
        self._padded = mask is not None
        self._pass = Pass(mask, past, tokens_in(arguments), most_remembered(self.model), arguments)
        if not self.is_off:
            self._pass.paths.enter_context(self._memory.taken(given))
            self._pass.paths.enter_context(slow_path())
            self._site.begin()  # type: ignore[union-attr]

    def _refuse_second_pass(self) -> None:
        if self._pass is None:
            return
        if self._pass.thread == threading.get_ident():
            self._close()  # of a pass that was interrupted
        raise UsageError(
            f"{self.called}: one forward pass must end before the next; {self} was still in one. Where the last was "
            "interrupted, run again; threads need a copy of the model each; a model may not call itself."
        )

    def _end(self, _: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        if self.looking or self._pass is None:
            return
        done = self._close()
        if output is None or self.is_off:  # the pass failed, or there is nothing to check
            return
        self._memory.keep(done.arguments, output, done.sums)
        idle = sorted(done.entered - done.fired)
        if idle or not done.entered:
            raise HookError(self.unmet(idle))

    def unmet(self, idle: list[str]) -> str:
        """What to say when it did not act in these blocks."""
        met = self._site.sites_met() if self._site else []
        return (
            f"fix_: {self.remedy} must act in every block; in {', '.join(idle[:3]) or 'no block'} of "
            f"{type(self.model).__name__} {self.at!r} was not met. They have {', '.join(met)}."
        )

    def _close(self) -> Pass:
        """End the pass: everything as before it."""
        done, self._pass = self._pass or Pass(), None
        if self._site is not None:
            self._site.end()
        done.paths.close()
        return done

    def enters(self, block: str) -> None:
        """A block begins to run."""
        if self._pass is not None:
            self._pass.entered.add(block)
        elif torch._C._current_graph_task_id() == -1 or self._padded or self.at not in ("block_in", "block_out"):
            raise HookError(
                f"{self.called}: {self} acts while {type(self.model).__name__} is called; {block} ran by itself. Fix "
                "the module that you call (an encoder, for example); checkpoints that run a block again need block_in "
                "or block_out, and no padding."
            )

    def fires(self, block: str) -> None:
        """The remedy acts in a block."""
        self.fired += 1
        if self._pass is not None:
            self._pass.fired.add(block)

    def fixed(self, block: str, tokens: Tensor) -> Tensor:
        """What the block's remedy makes of the tokens, in the model's own order of axes."""
        self.fires(block)
        now = self._pass or Pass()
        time_first = self._looked is not None and self._looked.axis == 0
        X = tokens.transpose(0, 1) if time_first else tokens
        mask, remedy = now.mask_of(X), self.copies[block]
        with no_modes():
            if isinstance(remedy, Remedy):
                stretch = now.stretch(mask, self.group)
                Y = remedy(X, stretch=stretch)
                now.sums.append(stretch.now)
            else:
                Y = remedy(X) if mask is None else remedy(X, mask=mask)
        new = Y.transpose(0, 1) if time_first else Y
        if self.on_change is not None:
            self.on_change(tokens, new)
        return new


def fix_(
    model: nn.Module,
    remedy: nn.Module | Mapping[str, Any],
    *,
    at: str | None = None,
    blocks: str | Iterable[str] | None = None,
    causal: str = "auto",
    group: Any = None,
) -> Fix:
    """Put a remedy into every block of a model, in place.

    at: block_in, attn_in, sa_out (before the residual is added), sa_sum (after), ffn_in, ffn_sum or block_out; attn for
    remedies of attention, weights for those of all weights, values for those of W_V and W_O; its own when None.
    blocks: a pattern such as "encoder.layers.*" where the finder should not choose.
    causal: "auto" looks at the model's attention before the first forward pass and takes the remedy's causal-safe form
    for a causal model; "yes" and "no" say it; "leak" insists on the remedy as it is, and every result is labelled.
    group: the torch.distributed group whose processes hold the parts of each sequence, in the order of their ranks.

    Returns a handle: handle.undo(), or use it as a context; handle.describe() is data that fix_ takes in place of a
    remedy. A remedy that learns has one copy for each block, among the model's parameters: fix first, then build the
    optimizer.
    """
    if isinstance(remedy, Mapping):
        remedy, at, blocks, causal = rebuilt(remedy, at, blocks, causal)
    if not isinstance(remedy, nn.Module):
        raise UsageError(f"fix_: remedy must be an nn.Module such as ds.remedies.DeEscalate(); got {remedy!r}.")
    own = getattr(remedy, "at", None) or "block_out"
    site: str = at or own
    if site not in SITES:
        raise UnknownNameError("fix_: " + unknown("site", site, SITES))
    if any((site == name) != isinstance(remedy, kind) for name, kind in KINDS.items()):
        raise UsageError(
            f"fix_: {type(remedy).__name__} must act at {own}; got {site}. Remedies of attention act at attn, those of "
            "weights at weights or values, all others at the tokens."
        )
    if group is not None and not (isinstance(remedy, Remedy) and site not in KINDS):
        raise UsageError(f"fix_: only a remedy of tokens can be shared by a group; got {type(remedy).__name__}.")
    if causal not in CAUSAL:
        raise UnknownNameError("fix_: " + unknown("choice of causal", causal, CAUSAL))
    return Fix(model, remedy, site, blocks_by_name(model, blocks), causal, group)
