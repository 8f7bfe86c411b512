"""What a reference model is made of: sizes and choices by name, checked once."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from depthscope._registry import import_folder, lookup, unknown
from depthscope.errors import UnknownNameError, UsageError


@dataclass(frozen=True)
class Design:
    """depth blocks of width d with h heads and a feed-forward width q (4 d when None), in the letters of Algorithm 1.

    alpha weighs the attention branch. wiring, attention, activation and weights are names: see depthscope ls models.
    output adds the projection W_O after the heads, which Algorithm 1 does not have; bias adds biases to all matrices.
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
        for name in ("depth", "d", "h", "ffn_width"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise UsageError(f"design: {name} must be a whole number, 1 or more; got {size!r}.")
        if self.d % self.h:
            raise UsageError(
                f"design: heads must divide the width; got d = {self.d} and h = {self.h}. "
                f"Try d = {max(1, round(self.d / self.h)) * self.h}."
            )
        if not 0 < self.alpha < float("inf"):
            raise UsageError(f"design: alpha must be positive and finite; got {self.alpha}. 1 is the classic block.")
        shelves()
        for table in ("wiring", "attention", "activation", "weights"):
            lookup(table, getattr(self, table))

    @property
    def ffn_width(self) -> int:
        """The number of columns of W_1."""
        return 4 * self.d if self.q is None else self.q


def shelves() -> None:
    """Fill the tables of wirings, attention formulas, activations and weight laws."""
    folder = Path(__file__).parent
    from depthscope.models import attentions, block, weights  # noqa: F401

    import_folder("depthscope.models.wirings", [str(folder / "wirings")])


def design_of(where: str, **choices: Any) -> Design:
    """A Design from keyword arguments; a wrong one is answered with the nearest."""
    known = [field.name for field in fields(Design)]
    for name in choices:
        if name not in known:
            raise UnknownNameError(f"{where}: " + unknown("choice", name, known))
    return Design(**choices)
