"""One forward pass of a fixed model: what is known of it, and what it needs."""

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from depthscope.interventions.means import Stretch
from depthscope.interventions.memory import Sums
from depthscope.interventions.pass_padding import Known, PassPadding, Told
from depthscope.interventions.under_way import UnderWay
from depthscope.traces.whose_padding import Padding


@dataclass
class Pass:
    """One forward pass: its padding, the sums of the tokens before it, and which blocks ran and were remedied."""

    padding: PassPadding = field(default_factory=lambda: Known(None))
    past: Sums | None = None  # None at the start of a sequence
    cached: int = 0  # tokens in the key-value cache
    window: int = 0  # the most tokens that a segment memory may hold
    arguments: dict[str, Any] = field(default_factory=dict)
    sums: Sums = field(default_factory=list)
    told: dict[tuple[int, int], Padding] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)
    fired: set[str] = field(default_factory=set)
    paths: ExitStack = field(default_factory=ExitStack)
    thread: int = field(default_factory=threading.get_ident)
    has_gradients: bool = field(default_factory=torch.is_grad_enabled)
    form: Any = None  # of the remedy
    way: Any = None  # in which the model is called
    may_compile: bool = False  # in one graph with the model
    in_graph: bool = False  # it is written down by torch.export: sizes are symbols, numbers are not there
    call: UnderWay | None = None  # of the model
    calls: Counter[str] = field(default_factory=Counter)  # of modules inside checkpoints
    is_rerun: bool = False  # a block runs again by itself, in the backward pass

    def again(self) -> "Pass":
        """The pass as a block finds it that runs now, to be taken up when the block runs again.

        What the pass was told of padding until its end is shared; what it holds of the model's arguments is left out.
        """
        return replace(
            self,
            padding=Told(self.padding.named),
            arguments={},
            sums=[[] for _ in self.sums],
            entered=set(),
            fired=set(),
            paths=ExitStack(),
            call=None,
            is_rerun=True,
        )

    def is_like(self, other: "Pass") -> bool:
        """Whether a block runs alike as a part of this pass and of another, both of them over."""
        same = self.past is other.past and len(self.sums) == len(other.sums) and self.form == other.form
        return same and self.window == other.window and _all_equal(self.told, other.told)

    def padding_of(self, X: Tensor) -> Padding:
        """The mask (B, n) of the tokens X (B, n, d), which come after those in the cache; told once for each length."""
        if self.in_graph:
            return Padding(self.padding.named)
        shape = X.shape[0], X.shape[-2]
        if shape not in self.told:
            named = self.padding.named
            if self.past is not None and named is not None and named.shape[-1] > shape[1]:
                first = self.cached or named.shape[-1] - shape[1]  # a state does not say how many came before
                self.told[shape] = Known(named[:, first : first + shape[1]]).of(shape)
            else:
                self.told[shape] = self.padding.of(shape)
        return self.told[shape]

    def stretch(self, mask: Tensor | None, group: Any) -> Stretch:
        """The tokens at hand in the next call of the remedy, whose mask this is."""
        return Stretch(mask, None if self.past is None else self.past[len(self.sums)], group, self.window)


def _all_equal(ours: dict[tuple[int, int], Padding], theirs: dict[tuple[int, int], Padding]) -> bool:
    masks = [(one.mask, theirs[shape].mask) for shape, one in ours.items() if shape in theirs]
    same = (a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in masks)
    return ours.keys() == theirs.keys() and all(same)
