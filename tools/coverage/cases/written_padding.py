"""Padding that is found inside the model, inside a batch, or in a mask with a meaning of its own."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import BATCH, DEPTH, TOKENS, WIDTH, WORDS, other_last, words
from tools.coverage.written import Block, Written, causal_bias, tokens, written
from torch import Tensor, nn

padded: Any = partial(written, group="padding")


def real(left: bool = False) -> Tensor:
    """Which tokens count, (B, n): the second sequence is six tokens shorter."""
    keep = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    keep[1, slice(0, 6) if left else slice(TOKENS - 6, None)] = False
    return keep


def bias_of(keep: Tensor) -> Tensor:
    """-1e9 at keys that are padding, (B, 1, 1, n)."""
    return torch.zeros(keep.shape).masked_fill(~keep, -1e9)[:, None, None]


class Reader(Written):
    """Ids in, tokens out; keep(...) tells which tokens count."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def through(self, ids: Tensor, bias: Tensor) -> Tensor:
        x = self.tap(0, self.words(ids))
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x, bias))
        return x


class FromIds(Reader):
    """The padding is ids.eq(0)."""

    def forward(self, ids: Tensor) -> Tensor:
        return self.through(ids, bias_of(ids.ne(0)))


class FromIdsCausal(Reader):
    def forward(self, ids: Tensor) -> Tensor:
        return self.through(ids, bias_of(ids.ne(0)) + causal_bias(ids.shape[1]))


class FromBatch(Reader):
    """model(batch): the mask is inside of what is the only argument."""

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        out = self.through(batch["ids"], bias_of(batch["attention_mask"].bool()))
        return {"token_embeddings": out, "mask": batch["attention_mask"]}


class FromLengths(Reader):
    """Lengths in the place of a mask."""

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.through(ids, bias_of(torch.arange(ids.shape[1]) < lengths[:, None]))


class FromMask(Reader):
    """attention_mask as Hugging Face has it, but written by hand."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.through(input_ids, bias_of(attention_mask.bool()))


class FromPaddingMask(Reader):
    """key_padding_mask as torch has it: True at padding."""

    def forward(self, ids: Tensor, key_padding_mask: Tensor) -> Tensor:
        return self.through(ids, bias_of(~key_padding_mask))


class OfTokens(Written):
    """Tokens in, with a mask (B, n) under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor, pad_mask: Tensor) -> Tensor:
        x, bias = self.tap(0, x), bias_of(pad_mask)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x, bias))
        return x


def ids(other: int = 0, left: bool = False) -> Tensor:
    return words().where(real(left), other)


def in_batch(other: int = 0) -> tuple[dict[str, Tensor]]:
    return ({"ids": ids(other), "attention_mask": real().long()},)


def given(other: int = 0) -> dict[str, Tensor]:
    return {"input_ids": ids(other), "attention_mask": real().long()}


padded("padding from ids", FromIds, inputs=ids, mask=lambda given: real())
padded("padding from ids left", FromIds, inputs=lambda: ids(left=True), mask=lambda given: real(left=True))
padded("padding from ids causal", FromIdsCausal, inputs=ids, mask=lambda given: real(), causal=True, changed=other_last)
padded("padding in a batch", FromBatch, inputs=in_batch, mask=lambda given: real(), repadded=lambda given: in_batch(9))
padded("padding by name", FromMask, inputs=given, mask=lambda _: real(), repadded=lambda _: given(9))
padded(
    "padding by lengths", FromLengths, inputs=lambda: (ids(), real().sum(1)), mask=lambda given: real(),
    repadded=lambda given: (ids(9), real().sum(1)),
)  # fmt: skip
padded(
    "padding True at padding", FromPaddingMask, inputs=lambda: {"ids": ids(), "key_padding_mask": ~real()},
    mask=lambda given: real(), repadded=lambda given: {**given, "ids": ids(9)},
)  # fmt: skip
padded(
    "padding of tokens", OfTokens, inputs=lambda: (tokens(), real()), mask=lambda given: real(),
    repadded=lambda given: (tokens().where(real()[..., None], 3.0), real()),
)  # fmt: skip
