"""What a reference model is made of: sizes and choices by name, checked once."""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from depthscope.checks import LARGEST
from depthscope.errors import UnknownNameError, UsageError
from depthscope.registry import lookup, unknown

State = Tensor | tuple[Tensor, ...]  # what flows between blocks: the main stream, or it and a wiring's further streams
TABLE_OF = {"wiring": "wiring", "attention": "attention", "activation": "activation", "weights": "weight law"}


def check_size(where: str, name: str, size: object) -> None:
    """Raise UsageError unless a size is a whole number from 1 to LARGEST."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise UsageError(f"{where}: {name} must be a whole number, 1 or more; got {size!r}. Give another {name}=.")
    if size > LARGEST:
        raise UsageError(f"{where}: {name} must be at most {LARGEST:,}; got {size}. Give another {name}=.")


@dataclass(frozen=True)
class Design:
    """depth blocks of width d with h heads and a feed-forward width q (4 d when None), in the letters of Algorithm 1.

    alpha weighs the attention branch. wiring, attention, activation and weights are names: see depthscope ls models.
    output adds the projection W_O after the heads, which Algorithm 1 does not have; bias adds biases to all matrices.

    Examples:
        >>> ds.models.Design(depth=2, d=8, h=2).q, ds.models.Design(wiring="pre_norm").wiring
        (None, 'pre_norm')
    """

    depth: int = 12
    d: int = 256
    h: int = 8
    q: int | None = None
    alpha: float = 1.0
    wiring: str = "post_norm"
    attention: str = "softmax"
    activation: str = "relu"
    weights: str = "unit_gain"
    causal: bool = False
    output: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        for name in ("depth", "d", "h"):
            check_size("design", name, getattr(self, name))
        if self.q is not None:
            check_size("design", "q", self.q)
        if self.d % self.h:
            raise UsageError(
                f"design: heads must divide the width; got d = {self.d} and h = {self.h}. "
                f"Try d = {max(1, round(self.d / self.h)) * self.h}."
            )
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha < float("inf"):
            raise UsageError(f"design: alpha must be positive and finite; got {self.alpha!r}. 1 is the classic block.")
        for name in ("causal", "output", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"design: {name} must be True or False; got {getattr(self, name)!r}.")
        shelves()
        for choice, table in TABLE_OF.items():
            try:
                lookup(table, str(getattr(self, choice)))
            except UnknownNameError as error:
                raise UnknownNameError(f"design: {error}") from None

    @property
    def ffn_width(self) -> int:
        """The number of columns of W_1."""
        return 4 * self.d if self.q is None else self.q

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The matrices of a block by their letters, (fan_out, fan_in) each: those alone that are there."""
        d, q = self.d, self.ffn_width
        attention = dict.fromkeys(("W_q", "W_k", "W", *(("W_O",) if self.output else ())), (d, d))
        network = {} if self.activation == "none" else {"W_1": (q, d), "W_2": (d, q)}
        return attention | network | ({"W_gate": (q, d)} if self.activation == "swiglu" else {})


def shelves() -> None:
    """Fill the tables of wirings, attention formulas, activations and weight laws."""
    from depthscope.models import attentions, ffn, weights, wirings  # noqa: F401


def design_of(where: str, **choices: Any) -> Design:
    """A Design from keyword arguments; a wrong one is answered with the nearest."""
    known = [field.name for field in fields(Design)]
    for name in choices:
        if name not in known:
            raise UnknownNameError(f"{where}: " + unknown("choice", name, known))
    return Design(**choices)


def streams_of(state: State) -> tuple[Tensor, ...]:
    """The streams of a state, the main one first."""
    return state if isinstance(state, tuple) else (state,)
