"""What happens to the residual stream of a block, as a listener hears it.

A block begins; attention reads its tokens; attention runs; its branch is about to join; it joins, with factors; norms
act; the block ends. Every method gives back what goes on in the place of what it was told of.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.traces.operations import Operation
from depthscope.traces.spans import Span


@dataclass(eq=False)
class Passage:
    """One block that is running: its stream, what stands for it, and how far it has come."""

    span: Span
    stream: Tensor
    standing: list[Tensor] = field(default_factory=list)  # norms and multiples of the stream
    heard: int = 0  # attentions that have run
    joined: int = 0  # of them, those that have joined the stream
    beside: int = 0  # those that joined it together with another: heads that are computed one by one
    pre_norm: bool = False
    matrices: int = 0  # since the last attention, before the first sum
    awaits_values: bool = False  # P is known and has not met the values: they may be made only now
    joint: bool = False  # attention was mixed with something else before the first sum
    sums: int = 0
    moves: int = 0  # how often the stream has become another tensor, or other numbers
    read_at: int = -1  # after how many of them anything but a sum has read it
    norms_before: int = 0  # norms of the stream before attention
    norms: int = 0  # norms of the stream, all
    aside: bool = False  # the feed-forward network does not read the sum that attention has joined
    late: bool = False  # attention joins the stream after the network has
    entered_ffn: bool = False
    attention_got: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # what it was to read, and what it got

    def __post_init__(self) -> None:
        self.shape = tuple(self.stream.shape)

    @property
    def block(self) -> str:
        return self.span.block

    @property
    def attentions(self) -> int:
        """How many join the stream, each by a sum; the feed-forward network follows the last."""
        return max(self.span.attentions - self.beside, 1)

    def attention_joins(self) -> None:
        """All attentions that have run since the last joined come in one sum."""
        self.beside += max(self.heard - self.joined - 1, 0)
        self.joined = self.heard

    def moves_to(self, stream: Tensor) -> Tensor:
        self.stream, self.standing, self.moves = stream, [], self.moves + 1
        return stream

    @property
    def attended(self) -> bool:
        return self.heard > 0

    @property
    def awaits_branch(self) -> bool:
        """Attention is done and has not joined the stream."""
        return self.attended and not self.sums and not self.is_parallel

    @property
    def is_parallel(self) -> bool:
        """Attention and feed-forward network are put together before they join the stream, as in GPT-NeoX."""
        return self.matrices > 1 or self.joint

    @property
    def shares_reading(self) -> bool:
        """What attention reads cannot be told from what the network reads: one norm serves both, or both come first."""
        return (self.joint or self.aside or self.late) and (self.norms_before != 1 or self.norms == 1)

    def is_stream(self, value: Any) -> bool:
        return value is self.stream or any(value is other for other in self.standing)


@dataclass(frozen=True, eq=False)
class Join:
    """A sum with the stream. stands: which of the two operands is the stream, a norm or a multiple of it."""

    op: Operation
    stands: list[bool]

    def run(self) -> Any:
        return self.op.run()

    @property
    def pair(self) -> tuple:
        return self.op.args[:2]

    @property
    def is_of_branch(self) -> bool:
        """Whether one operand is the stream and the other tokens of the same shape."""
        a, b = (*self.pair, None, None)[:2]
        return self.stands.count(True) == 1 and isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape

    @property
    def branch(self) -> Any:
        return self.pair[self.stands.index(False)]

    @property
    def branch_factor(self) -> float:
        """alpha of torch.add(a, b, alpha=), which is the second operand's."""
        return float(self.op.kwargs.get("alpha", 1.0)) if self.stands[0] else 1.0

    def stream_alone(self) -> Tensor:
        """The stream with its factor, in the place and the dtype of the sum, which is not made."""
        kept = self.stands.index(True)
        pair, alpha = self.pair, self.op.kwargs.get("alpha", 1) if kept == 1 else 1
        new = pair[kept] if alpha == 1 else alpha * pair[kept]
        if self.op.in_place:
            return pair[0] if new is pair[0] else pair[0].copy_(new)
        return new.to(torch.result_type(*pair))

    def branch_alone(self) -> Tensor:
        """The sum with zeros for the stream: it is made, so that whoever watches sees where the stream goes on."""
        stream = self.pair[self.stands.index(True)]
        zeros = stream * 0
        zeros = zeros.nan_to_num(0.0) if bool(zeros.isnan().any()) else zeros  # of what is not finite
        if self.op.in_place and self.stands[0]:
            return self.op.with_args(stream.copy_(zeros), self.pair[1]).run()
        return self.op.with_args(
            *(zeros if stands else a for a, stands in zip(self.pair, self.stands, strict=True))
        ).run()


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of some tokens: by is the module, or the call of a function by no module that is one."""

    source: Any
    by: nn.Module | Operation
    run: Callable[[], Tensor]


class StreamListener:
    """Hears what happens in the blocks; to be derived from. open: the block that is running, None between blocks."""

    open: Passage | None = None
    norms_first = False  # whether a norm's output is changed before other hooks see it
    hears_everything = False  # or only functions that have a role (operations.py)

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        """A block is given its tokens."""
        return tokens

    def reads(self, now: Passage) -> None:
        """A module without children, or attention, reads the stream."""

    def before(self, now: Passage | None, op: Operation) -> Operation:
        """A torch function is about to run, in a block or between blocks."""
        return op

    def operation(self, now: Passage, op: Operation) -> Any:
        """A torch function that is neither a sum with the stream nor a norm."""
        return op.run()

    def attention(self, now: Passage, op: Operation, result: Tensor) -> Tensor:
        """Attention has run: result is what its function gave, P v or P."""
        return result

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        """The tokens at a named place: attn_in, sa_out, sa_sum, ffn_in, ffn_sum."""
        return tokens

    def join(self, now: Passage, join: Join) -> Any:
        """A sum with the stream."""
        return join.run()

    def norm(self, now: Passage, norm: Norm) -> Tensor:
        """A norm, of the stream or of something else in the block."""
        return norm.run()

    def ends(self, now: Passage, tokens: Tensor | None) -> None:
        """The block has ended with these tokens; None where it gave none, or failed."""
