"""Which tokens are padding in one forward pass of a fixed model, told when the remedy asks.

mask= of fix_ where it was given. Else the mask among the arguments and what attention leaves unseen: seen while the
pass runs, or by a glance before it where the remedy acts before the first attention does.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from torch import Tensor

from depthscope.errors import MaskError
from depthscope.traces.attention import attention_in
from depthscope.traces.glance import Glance
from depthscope.traces.operations import Operation
from depthscope.traces.unseen_keys import KeysMet, agreed
from depthscope.traces.watcher import Watched
from depthscope.traces.whose_padding import Padding, padding_of


class PassPadding(Protocol):
    """What a pass asks for the mask of its tokens (B, n)."""

    named: Tensor | None

    def begins(self) -> None:
        """The first block is entered."""
        ...

    def of(self, shape: tuple[int, int]) -> Padding: ...


class Known:
    """The mask is known before the pass: it was given, or the tokens come after others in a cache."""

    def __init__(self, named: Tensor | None) -> None:
        self.named = named

    def begins(self) -> None: ...

    def of(self, shape: tuple[int, int]) -> Padding:
        if self.named is not None and tuple(self.named.shape) != shape:
            raise MaskError(
                f"the padding mask must have one entry for each token, {shape}; got {tuple(self.named.shape)}. Give "
                "sequences of equal length, or mask= as a function of the model's arguments that returns one."
            )
        return Padding(self.named)


class Told:
    """The pass is over, in which the blocks told what is padding; one of them runs again."""

    def __init__(self, named: Tensor | None) -> None:
        self.named = named

    def begins(self) -> None: ...

    def of(self, shape: tuple[int, int]) -> Padding:
        raise MaskError(
            f"a block that runs again in the backward pass must be given as many tokens as before; got {shape}, which "
            "the pass did not have. Checkpoint whole blocks, or turn checkpointing off."
        )


class Glanced:
    """The first attention is looked at by a glance, before it runs in the pass."""

    def __init__(self, named: Tensor | None, look: Callable[[], Glance]) -> None:
        self.named, self.look = named, look

    def begins(self) -> None: ...

    def of(self, shape: tuple[int, int]) -> Padding:
        seen = self.look()
        found = seen.padding(self.named)
        return found if found.mask is None or seen.shape == shape else Known(found.mask).of(shape)


class Watching:
    """A listener to a pass: what its attentions leave unseen, those of the blocks apart from those before them.

    look: the glance for a remedy that acts before any attention of the blocks has run (blocks that begin otherwise).
    """

    everything = False

    def __init__(self, named: Tensor | None, look: Callable[[], Glance]) -> None:
        self.named, self.look, self.keys = named, look, KeysMet()
        self.before: int | None = None
        self.heard, self.masked = 0, False  # attentions; whether any of them was or may have been given a mask

    def modules(self) -> Iterable[Watched]:
        return ()

    def closed(self, failed: bool) -> None: ...

    def begins(self) -> None:
        if self.before is None:
            self.before = len(self.keys.found)

    def operation(self, op: Operation) -> Any:
        result = op.run()
        seen = attention_in(op, result) if op.role in ("attention", "softmax") else None
        if seen is not None:
            self.heard += 1
            self.masked |= op.role == "softmax" or (
                op.named().get("attn_mask") is not None and not getattr(op.func, "masks_by_position", False)
            )
        if seen is not None and not self._told(seen.keys):
            self.keys.add(0, seen)
        return result

    def _told(self, n: int) -> bool:
        """Whether the blocks have shown already what is padding among n tokens."""
        return self.before is not None and any(one.unseen.shape[-1] == n for one in self.keys.found[self.before :])

    def of(self, shape: tuple[int, int]) -> Padding:
        before = self.before or 0
        own, others = self.keys.found[before:], self.keys.found[:before]
        if agreed(own, *shape) is None:
            return Glanced(self.named, self.look).of(shape)
        return padding_of(self.named, own, others, shape)
