"""The padding of every pass of a fixed model: who is asked, before the pass and in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from depthscope.errors import MaskError
from depthscope.interventions.pass_padding import Glanced, Known, PassPadding, Watching
from depthscope.traces.entry import run_model
from depthscope.traces.glance import Glance, glance
from depthscope.traces.inputs import padding_in
from depthscope.traces.suspected import suspicion
from depthscope.traces.unseen_keys import agreed

BEFORE_ATTENTION = ("block_in", "attn_in")  # sites where a remedy acts before the first attention has run

WITHOUT_TOKENS = ("attn", "weights", "values")  # and where it does not act on tokens


class Paddings:
    """Of one fix. given: mask= of fix_, a tensor (B, n) or a function of the model's arguments, or None."""

    def __init__(self, fix: Any, given: Tensor | Callable[..., Tensor] | None) -> None:
        self.fix, self.given = fix, given
        self._silent = False  # whether no attention over whole sequences was seen, nor a mask at the blocks
        self._tried: tuple[Tensor, int] | None = None  # mask and sequence of a trial that runs
        self._masked = False  # whether attention was given masks, in which there may be padding

    def of_pass(self, args: tuple, kwargs: dict[str, Any], continues: bool) -> PassPadding:
        """The padding of a pass with these arguments; continues: whether earlier tokens are in a cache."""
        if self.given is not None:
            return _OnTrial(*self._tried) if self._tried is not None else Known(self._said(args, kwargs))
        named = self._named(args, kwargs)
        if self._is_shared or continues or self._silent or self.fix.at in WITHOUT_TOKENS:
            return Known(named)
        look = partial(self._glance, args, kwargs, self.fix.axis)
        return (Glanced if self.fix.at in BEFORE_ATTENTION else Watching)(named, look)

    def saw(self, seen: PassPadding) -> None:
        """A pass has ended: was attention given masks?"""
        self._masked |= isinstance(seen, Watching) and seen.masked

    def in_graph(self, args: tuple, kwargs: dict[str, Any]) -> PassPadding:
        """The padding of a pass that is written down: by the arguments alone, as no attention can be looked at."""
        if self.given is not None:
            return Known(self._said(args, kwargs))
        if self.fix.at in WITHOUT_TOKENS:
            return Known(None)
        named = run_model(self.fix.model, lambda: self._named(args, kwargs))
        if named is None and (self._masked or self.fix.at in BEFORE_ATTENTION):
            raise MaskError(
                "what is padding must be told by an argument where a model is exported (attention_mask, for example); "
                f"for {self.fix} nothing among those of {type(self.fix.model).__name__} does. Pass mask= to fix_, a "
                "function of the model's arguments that returns (B, n): 1 for a token."
            )
        return Known(named)

    def before(self, args: tuple, kwargs: dict[str, Any], axis: int) -> Tensor | None:
        """The mask (B, n) of a call, before the model runs; None where all tokens count."""
        if self.given is not None:
            return self._said(args, kwargs)
        named = self._named(args, kwargs)
        if self._is_shared:
            return named
        seen = self._glance(args, kwargs, axis)
        found = seen.padding(named)
        told = seen.shape is not None and agreed(seen.own, *seen.shape) is not None
        self._silent = seen.shape is not None and not told and seen.handed is None
        note = found.note
        if found.mask is None and not note and seen.shape is not None:
            note = suspicion(self.fix.model, args, kwargs, seen.shape, told=told)
        if note and note not in self.fix.notes:
            self.fix.notes.append(note)
        return found.mask

    @property
    def _is_shared(self) -> bool:
        """Whether other processes hold a part of the tokens, or of the weights: a glance would leave them waiting."""
        return self.fix.group is not None or any(hasattr(p, "device_mesh") for p in self.fix.model.parameters())

    @contextmanager
    def on_trial(self, mask: Tensor | None, row: int) -> Iterator[None]:
        """While a part of a call is tried, the mask that was given does not fit: this one, of its tokens, does."""
        self._tried = None if mask is None else (mask, row)
        try:
            yield
        finally:
            self._tried = None

    def _named(self, args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
        return padding_in(self.fix.model, args, kwargs, self.fix.blocks)

    def _glance(self, args: tuple, kwargs: dict[str, Any], axis: int) -> Glance:
        model = self.fix.model
        return run_model(model, lambda: glance(model, self.fix.blocks, axis, args, kwargs))

    def _said(self, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """What mask= says of a call, True where a token counts."""
        mask = self.given if isinstance(self.given, Tensor) else self.given(*args, **kwargs)  # type: ignore[misc]
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
            raise MaskError(f"mask must be a tensor (B, n), 1 for a token and 0 for padding; got {got}.")
        return mask > 0.5 if mask.is_floating_point() else mask.bool()


class _OnTrial(Known):
    """One sequence of the batch may be tried alone."""

    def __init__(self, mask: Tensor, row: int) -> None:
        super().__init__(mask)
        self.row = row

    def of(self, shape: tuple[int, int]) -> Any:
        alone = self.named is not None and shape[0] == 1 < len(self.named)
        return Known(self.named[self.row : self.row + 1] if alone else self.named).of(shape)  # type: ignore[index]
