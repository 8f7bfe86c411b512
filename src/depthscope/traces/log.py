"""The records that one watched forward pass leaves behind: numbers and order, no activations."""

from dataclasses import dataclass, field
from typing import Any

from depthscope.traces.token_axis import Frames
from depthscope.traces.unseen_keys import KeysMet


@dataclass(eq=False)
class State:
    """One token tensor that was seen: who made it, its shape and what was measured on it."""

    path: str
    order: int
    shape: tuple[int, ...]
    dtype: str
    axis: int | None = None
    numbers: Any = None


@dataclass(eq=False)
class Call:
    """One call of a module: clock times of entering and leaving, the states that went in and came out."""

    path: str
    entered: int
    left: int = -1
    source: State | None = None
    result: State | None = None


@dataclass(eq=False)
class Add:
    """A sum of two token tensors of which at least one was known; operands as (state or None, scale)."""

    path: str
    order: int
    operands: list[tuple[State | None, float]]
    result: State
    bias: float = 0.0  # |b|^2 of the bias that was added last before this sum
    joint: bool = False  # attention and something else were mixed before they came here


@dataclass(eq=False)
class Attention:
    """One self-attention: its place in the log and the numbers of its heads."""

    path: str
    order: int
    tokens: int
    numbers: Any


@dataclass(frozen=True)
class HeadInput:
    """A tensor smaller than the tokens that was given to a module with weights, or to the caller (path "")."""

    path: str
    order: int
    rms: float


@dataclass
class Log:
    """All that one forward pass left behind, in the order of a clock that ticks at every event."""

    calls: list[Call] = field(default_factory=list)  # of modules that may be blocks, tokens in and out
    norms: list[Call] = field(default_factory=list)
    remedies: list[Call] = field(default_factory=list)  # tokens before and after, as fix_ tells it
    adds: list[Add] = field(default_factory=list)
    attentions: list[Attention] = field(default_factory=list)
    matrices: list[int] = field(default_factory=list)  # when tokens were multiplied by weights
    head_inputs: list[HeadInput] = field(default_factory=list)
    frames: Frames = field(default_factory=Frames)
    keys: KeysMet = field(default_factory=KeysMet)  # that self-attention leaves unseen, in windows too
    other_attention: int = 0  # attention between sequences, or inside windows
    dropout: bool = False
