"""Feed attention known tokens in every block of a running model, and see what it reads and gives: no names needed.

Where attention reads (attn_in) the tokens are replaced by chosen ones, what the heads give is replaced by chosen
vectors, and what joins the residual stream (sa_out) is noted. Whatever the modules are called, queries, keys, values
and the output are then known functions of known vectors.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depthscope.circuits.wide import wide
from depthscope.errors import HookError
from depthscope.traces.events import Norm, Passage, StreamListener
from depthscope.traces.operations import Operation

Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values, (R, H, .) each


@dataclass(eq=False)
class Seen:
    """Of one block: its heads for the tokens that were fed, one row each, what joined the stream, and its norms."""

    heads: Heads | None = None
    count: int = 0  # of the heads
    values: int = 0  # width of one head's values, 0 where only P is seen
    scale: float = 0.0
    out: Tensor | None = None  # (R, d)
    norm_before: nn.Module | None = None  # the one that attention reads through
    norm_after: nn.Module | None = None  # the first one after the sum


@dataclass(frozen=True)
class Feed:
    """What one pass is fed: tokens (R, d), and in the place of what attention computes the vectors mixed (R, H d_v), or
    where only P is seen, a P that hands on the tokens of one head; None and None: attention is left alone. site:
    block_in where attention reads by no module and through no norm, as in XLNet."""

    tokens: Tensor
    mixed: Tensor | None = None
    head: int | None = None
    site: str = "attn_in"


class Probe(StreamListener):
    """One pass of a model in which every block's attention is fed the same rows. batch, n, axis: of its tokens."""

    def __init__(self, axis: int, feed: Feed) -> None:
        self.axis, self.feed = axis, feed
        self.seen: dict[Passage, Seen] = {}
        self.dtype = torch.float64
        self.batch = self.tokens = self.width = 0  # R = batch x tokens places for rows

    @property
    def blocks(self) -> list[Seen]:
        """What the blocks showed, in the order in which they ran."""
        return list(self.seen.values())

    @property
    def places(self) -> int:
        return self.batch * self.tokens

    def _note(self, passage: Passage) -> Seen:
        return self.seen.setdefault(passage, Seen())

    # tokens

    def begins(self, now: Passage, tokens: Tensor) -> Tensor:
        return self._placed(tokens) if self.feed.site == "block_in" else tokens

    def site(self, now: Passage, name: str, tokens: Tensor) -> Tensor:
        if name == "attn_in" and name == self.feed.site:
            return self._placed(tokens)
        if name == "sa_out":
            self._note(now).out = self._rows(tokens)
        return tokens

    def _placed(self, tokens: Tensor) -> Tensor:
        """The rows of the feed in the places of the tokens, zeros in those that are left over."""
        like = tokens.transpose(0, 1) if self.axis == 0 else tokens
        if like.ndim != 3:
            raise HookError(
                f"attention must read tokens (B, n, d); it reads {tuple(like.shape)}. Several streams, as of "
                "hyper-connections, have no one circuit."
            )
        self.batch, self.tokens, self.width = like.shape
        self.dtype = like.dtype
        new = _filled(self.feed.tokens, self.places, self.width, like).reshape(like.shape)
        return new.transpose(0, 1).contiguous() if self.axis == 0 else new

    def _rows(self, tokens: Tensor) -> Tensor:
        """(R, d), in the order of the feed."""
        first = tokens.transpose(0, 1) if self.axis == 0 else tokens
        return wide(first).reshape(-1, tokens.shape[-1])

    # attention

    def attention(self, now: Passage, op: Operation, result: Tensor) -> Tensor:
        if now.heard > 1 or not self.places:  # not the first of a block; or nothing could be fed, which tells enough
            return result
        if op.role == "attention":
            return self._given(self._note(now), op.named(), result)
        return self._handed(self._note(now), result)

    def _given(self, seen: Seen, call: dict[str, Any], result: Tensor) -> Tensor:
        """Note queries, keys and values (B, H, n, .); give back the vectors of the feed in the place of P v."""
        q = call["query"]
        heads = q.shape[0] // self.batch if q.ndim == 3 else q.shape[-3]  # (B H, n, .) folds them into the batch
        seen.count, seen.values = heads, result.shape[-1]
        seen.scale = call["scale"] if call.get("scale") is not None else q.shape[-1] ** -0.5
        seen.heads = tuple(self._by_row(x, seen.count) for x in (q, call["key"], call["value"]))  # type: ignore[assignment]
        if self.feed.mixed is None:
            return result
        rows = _filled(self.feed.mixed, self.places, seen.count * seen.values, q)
        return rows.reshape(self.batch, self.tokens, seen.count, -1).transpose(1, 2).reshape(result.shape)

    def _by_row(self, x: Tensor, heads: int) -> Tensor:
        """(B, H, n, .) -> (R, H, .); heads that share keys and values get their own copies."""
        x = wide(x).reshape(self.batch, -1, self.tokens, x.shape[-1])
        x = x.repeat_interleave(heads // x.shape[1], 1).transpose(1, 2)
        return x.reshape(-1, heads, x.shape[-1])

    def _handed(self, seen: Seen, P: Tensor) -> Tensor:
        """One head's P is made the identity, the others' nothing: the output is this head's X W_V W_O."""
        four = P.reshape(self.batch, -1, *P.shape[-2:])
        seen.count = four.shape[1]
        if self.feed.head is None:
            return P if self.feed.mixed is None else torch.zeros_like(P)
        new = torch.zeros_like(four)
        new[:, self.feed.head] = torch.eye(P.shape[-1], dtype=P.dtype, device=P.device)
        return new.reshape(P.shape)

    # norms

    def norm(self, now: Passage, norm: Norm) -> Tensor:
        if isinstance(norm.by, nn.Module) and now.is_stream(norm.source):
            seen = self._note(now)
            if not now.attended:
                seen.norm_before = norm.by
            elif now.sums and seen.norm_after is None:
                seen.norm_after = norm.by
        return norm.run()


def _filled(rows: Tensor, count: int, width: int, like: Tensor) -> Tensor:
    """The rows in the upper left of (count, width), zeros elsewhere."""
    new = torch.zeros(count, width, dtype=like.dtype, device=like.device)
    part = rows[:count, :width].to(new)
    new[: part.shape[0], : part.shape[1]] = part
    return new
