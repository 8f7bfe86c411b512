"""A glance at a model before it runs: which of the tokens that enter its blocks are padding?

A quiet pass that ends at the first self-attention over those tokens. It is needed where the answer must be known before
attention has run (a remedy at block_in), and where no attention shows it: then the mask that the model hands to its
first block tells.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.attention import attention_in
from depthscope.traces.cut_weights import forward_of
from depthscope.traces.inputs import fresh, padding_in
from depthscope.traces.operations import Operation
from depthscope.traces.places import called_parts, tokens_given
from depthscope.traces.slow_path import slow_path
from depthscope.traces.survey import evaluated, hooks_away
from depthscope.traces.trial import uncached
from depthscope.traces.unseen_keys import KeysMet, KeysUnseen, agreed
from depthscope.traces.untouched import untouched
from depthscope.traces.watcher import Watched, Watcher, unwatched
from depthscope.traces.whose_padding import HANDED, Padding, padding_of


@dataclass(frozen=True)
class Glance:
    """What was seen on the way to the first self-attention of the blocks, and in it.

    shape: (B, n) of the tokens that enter the blocks, None where none did. handed: the mask (B, n) that the first block
    was given. own, others: what attention leaves unseen, inside the blocks and before them.
    """

    shape: tuple[int, int] | None
    handed: Tensor | None
    own: list[KeysUnseen]
    others: list[KeysUnseen]

    def padding(self, named: Tensor | None) -> Padding:
        """Which tokens are padding, given the mask among the model's inputs."""
        if self.shape is None:
            return Padding(named)
        if self.handed is not None and agreed(self.own, *self.shape) is None:
            if named is None or tuple(named.shape) != self.shape:
                return Padding(self.handed, HANDED)
        return padding_of(named, self.own, self.others, self.shape)


class _EnoughError(Exception):
    """The first self-attention has been seen: the rest of the pass tells nothing more."""


class _Glancer:
    """A listener that ends the pass at the first self-attention over the tokens of the blocks."""

    everything = False

    def __init__(self, model: nn.Module, blocks: Iterable[str], axis: int) -> None:
        self.model, self.blocks, self.axis = model, list(blocks), axis
        self.keys = KeysMet()
        self.before = 0  # attentions before the blocks began
        self.shape: tuple[int, int] | None = None
        self.handed: Tensor | None = None
        self.first: str | None = None  # block that tokens have entered

    def modules(self) -> Iterable[Watched]:
        for path in dict.fromkeys(self.blocks):
            for part in called_parts(self.model, path):
                yield Watched(self.model.get_submodule(part), before=self._enters(path))

    def closed(self, failed: bool) -> None: ...

    def _enters(self, block: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            tokens = tokens_given(module, args, kwargs)
            if self.first is None and tokens is not None and tokens.ndim == 3:
                self.first = block
                self._begin(module, tokens, args, kwargs)
            elif self.first not in (None, block) and self.handed is not None:
                raise _EnoughError  # it will be handed the same

        return hook

    def _begin(self, module: nn.Module, tokens: Tensor, args: tuple, kwargs: dict) -> None:
        self.shape = tokens.shape[1 - self.axis], tokens.shape[self.axis]
        self.before = len(self.keys.found)
        handed = padding_in(module, args, kwargs)
        self.handed = handed if handed is not None and tuple(handed.shape) == self.shape else None

    def operation(self, op: Operation) -> Any:
        result = op.run()
        seen = attention_in(op, result)
        if seen is not None:
            self.keys.add(0, seen)
            if self.shape is not None and any(one.by_sequence(*self.shape) is not None for one in self.own):
                raise _EnoughError
        return result

    @property
    def own(self) -> list[KeysUnseen]:
        return self.keys.found[self.before :] if self.shape is not None else []


def glance(model: nn.Module, blocks: Iterable[str], axis: int, args: tuple, kwargs: dict[str, Any]) -> Glance:
    """Run a model up to the first self-attention of its blocks and leave no trace; axis: of the tokens."""
    looks = _Glancer(model, blocks, axis)
    try:
        with unwatched(), untouched(model), evaluated(model), hooks_away(model), torch.no_grad(), slow_path():
            args, kwargs = fresh(*uncached(args, kwargs))
            with Watcher(looks):
                forward_of(model)(*args, **kwargs)
    except _EnoughError:
        pass
    return Glance(looks.shape, looks.handed, looks.own, looks.keys.found[: looks.before])
