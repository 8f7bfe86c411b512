"""The records that one watched forward pass leaves behind: numbers and order, no activations."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from depthscope.checks import measurable
from depthscope.traces.flow import Flow
from depthscope.traces.token_axis import Frames
from depthscope.traces.tokens import Layout
from depthscope.traces.unseen_keys import KeysMet


@dataclass(eq=False)
class State:
    """One token tensor that was seen: who made it, its shape and what was measured on it."""

    path: str
    order: int
    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None = None
    numbers: Any = None
    whole: bool = False  # whether all that is asked for was measured, as at the ends of blocks

    @property
    def axis(self) -> int | None:
        """The axis of the tokens, the first of them where there are several."""
        return None if self.layout is None else self.layout.tokens[0]

    @property
    def tokens(self) -> int:
        return math.prod([self.shape[axis] for axis in self.layout.tokens]) if self.layout else 0

    @property
    def width(self) -> int:
        return self.shape[self.layout.channels] if self.layout else 0


@dataclass(eq=False)
class Call:
    """One call of a module: clock times of entering and leaving, the states that went in and came out."""

    path: str
    entered: int
    left: int = -1
    source: State | None = None
    result: State | None = None


class OpenCalls:
    """The calls of modules that have not ended yet.

    path: of the innermost. source: the tokens that entered the innermost module that may be a block. between: whether
    none of them may be a block, so that what passes here may be the state between two blocks.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Call, State | None, bool]] = []  # each with what was known before it began
        self.path, self.between = "", True
        self.source: State | None = None

    def push(self, call: Call, *, candidate: bool) -> None:
        self._open.append((call, self.source, self.between))
        self.path, self.between = call.path, self.between and not candidate
        self.source = self.source if call.source is None else call.source

    def pop(self, path: str) -> Call:
        """The innermost call of a module ends; one inside of it raised, if it did not, and its caller went on."""
        while True:
            call, self.source, self.between = self._open.pop()
            if call.path == path:
                self.path = self._open[-1][0].path if self._open else ""
                return call


@dataclass(eq=False)
class Add:
    """A sum of two token tensors of which at least one was known; operands as (state or None, scale)."""

    path: str
    order: int
    operands: list[tuple[State | None, float]]
    result: State
    bias: Any = 0.0  # |b|^2 of the bias that was added last before this sum; until the pass ends |b|, on its device
    joint: bool = False  # attention and something else were mixed before they came here


def length_of(bias: Tensor) -> Any:
    """|b|, in float64, on its device where it can be."""
    return torch.linalg.vector_norm(measurable(bias.detach()), dtype=torch.float64)


@dataclass(eq=False)
class Attention:
    """One attention: its place in the log and the numbers of its heads.

    kind: "self"; "window", inside parts of the sequence; "cross", to other tokens; "mixing", without probabilities.
    tokens: of a sequence, or of a window. sink: rows of P sum to less than one.
    """

    path: str
    order: int
    tokens: int
    numbers: Any
    kind: str = "self"
    sink: bool = False
    node: int | None = None  # in the flow


@dataclass(frozen=True)
class HeadInput:
    """A tensor smaller than the tokens that was given to a module with weights, or to the caller (path "")."""

    path: str
    order: int
    rms: float


@dataclass
class Log:
    """All that one forward pass left behind, in the order of a clock that ticks at every event."""

    flow: Flow
    calls: list[Call] = field(default_factory=list)  # of modules that may be blocks, tokens in and out
    norms: list[Call] = field(default_factory=list)
    remedies: list[Call] = field(default_factory=list)  # tokens before and after, as fix_ tells it
    adds: list[Add] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    matrices: list[int] = field(default_factory=list)  # when tokens were multiplied by weights
    head_inputs: list[HeadInput] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    keys: KeysMet = field(default_factory=KeysMet)  # that self-attention leaves unseen, in windows too
    other_attention: int = 0  # attention that does not fit the tokens: over a memory, or between sequences
    dropout: bool = False

    def fetch_biases(self) -> None:
        """The pass has ended: biases become numbers. Asked for one by one they would have kept a device waiting."""
        waiting = [add for add in self.adds if isinstance(add.bias, Tensor)]
        for kind in {(type(add.bias), add.bias.device) for add in waiting}:
            here = [add for add in waiting if (type(add.bias), add.bias.device) == kind]
            together = kind[0] is Tensor  # others, cut over processes, are fetched one by one
            sizes = torch.stack([add.bias for add in here]).tolist() if together else [float(add.bias) for add in here]
            for add, size in zip(here, sizes, strict=True):
                add.bias = size**2
