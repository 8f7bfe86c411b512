"""What attention made, on its way to the stream, and whether something else is mixed into it.

A parallel block adds its feed-forward network to attention before both join the stream, X + (SA(X) + FFN(X)), or
multiplies both by one matrix. That is seen by what is added to what: a sum, or a concatenation, of tokens that come
from attention with tokens that do not.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from depthscope.traces.identity import Known
from depthscope.traces.operations import Operation


class Lineage:
    """The tensors that attention made, from one attention to the sum with the stream."""

    def __init__(self) -> None:
        self.active = False
        self.mixed = False  # with tokens that attention did not make
        self._made: Known[bool] = Known()
        self._stream: Known[bool] = Known()  # forms of the stream itself

    def know_stream(self, tensor: Any) -> None:
        """A form of the stream: a sum with it mixes nothing into the branch."""
        if isinstance(tensor, Tensor):
            self._stream.add(tensor, True)

    def begin(self, result: Any) -> None:
        """Attention gave this."""
        self.active = True
        for tensor in _tensors((result,)):
            self._made.add(tensor, True)

    def end(self) -> None:
        self.active = self.mixed = False
        self._made.clear()
        self._stream.clear()

    def made(self, tensor: Any) -> bool:
        """Whether attention made this tensor."""
        return self._made.find(tensor) is not None

    def follow(self, op: Operation, result: Any, known: tuple[bool, ...]) -> None:
        """A function ran. known: which of its tensors attention made, asked before it ran (it may write into them)."""
        if not any(known):
            return
        if op.role in ("sum", "cat") and not all(known):
            own = next(t for t, made in zip(_tensors(op.args), known, strict=False) if made)
            others = [t for t, made in zip(_tensors(op.args), known, strict=False) if not made]
            others = [t for t in others if self._stream.find(t) is None]
            self.mixed |= any(_are_tokens(other, own, same=op.role == "sum") for other in others)
        self.begin(result)

    def asked(self, op: Operation) -> tuple[bool, ...]:
        """Which tensors among the arguments attention made; () between a sum with the stream and the next attention."""
        return tuple(map(self.made, _tensors(op.args))) if self.active else ()


def _tensors(values: tuple | list) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (one for one in value if isinstance(one, Tensor))


def _are_tokens(other: Tensor, own: Tensor, *, same: bool) -> bool:
    """Whether a tensor holds tokens as attention's do, (B, n, d), and is no bias or table of positions."""
    fits = other.shape == own.shape if same else other.shape[:-1] == own.shape[:-1]
    return own.ndim == 3 and fits and not isinstance(other, nn.Parameter)
