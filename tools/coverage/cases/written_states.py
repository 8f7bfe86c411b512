"""What a block takes and hands on: dicts, records, conditions, pairs, one token beside the others."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import BATCH, DEPTH, HEADS, WIDTH, numbers, words
from tools.coverage.written import Block, Written, network, tokens, written
from torch import Tensor, nn

state: Any = partial(written, group="states")


class Listed(Written):
    """Blocks of one class in a list, with parts for what else a model needs."""

    def __init__(self, kind: Any = Block, count: int = DEPTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(count))


class InDict(Block):
    def forward(self, state: dict[str, Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        return {**state, "x": super().forward(state["x"])}


class Dicts(Listed):
    """{"x": tokens, "step": a number} goes from block to block."""

    def __init__(self) -> None:
        super().__init__(InDict)

    def forward(self, x: Tensor) -> Tensor:
        state = {"step": torch.zeros(()), "x": self.tap(0, x)}
        for i, block in enumerate(self.blocks):
            state = block(state)
            state["x"] = self.tap(i + 1, state["x"])
        return state["x"]


@dataclass
class Record:
    tokens: Tensor
    time: Tensor


class InRecord(Block):
    def forward(self, record: Record) -> Record:  # type: ignore[override]
        return replace(record, tokens=super().forward(record.tokens))


class Records(Listed):
    """A dataclass goes from block to block."""

    def __init__(self) -> None:
        super().__init__(InRecord)

    def forward(self, x: Tensor) -> Tensor:
        record = Record(self.tap(0, x), torch.zeros(len(x), WIDTH))
        for i, block in enumerate(self.blocks):
            record = block(record)
            record.tokens = self.tap(i + 1, record.tokens)
        return record.tokens


class InTuple(Block):
    def forward(self, pair: tuple[Tensor, int]) -> tuple[Tensor, int]:  # type: ignore[override]
        return super().forward(pair[0]), pair[1] + 1


class Tuples(Listed):
    def __init__(self) -> None:
        super().__init__(InTuple)

    def forward(self, x: Tensor) -> Tensor:
        pair = (self.tap(0, x), 0)
        for i, block in enumerate(self.blocks):
            y, count = block(pair)
            pair = (self.tap(i + 1, y), count)
        return pair[0]


class Modulated(Block):
    """DiT's: shift, scale and gate from a condition (B, d), or (B, 1, d), which comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, c: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        c = c if c.ndim == 3 else c[:, None]
        shift1, scale1, gate1, shift2, scale2, gate2 = self.ada(c).chunk(6, dim=-1)
        x = x + (0.5 + gate1) * self.attn(self.norm1(x) * (1 + scale1) + shift1)
        return x + (0.5 + gate2) * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class Conditioned(Listed):
    def __init__(self) -> None:
        super().__init__(Modulated)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(c, x))
        return x


class WithPair(Block):
    """A folding block: a representation (B, n, n, c) of pairs first, the tokens second."""

    def __init__(self) -> None:
        super().__init__()
        self.to_bias, self.from_tokens = nn.Linear(8, HEADS), nn.Linear(WIDTH, 8)

    def forward(self, pair: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = x + self.attn(self.norm1(x), self.to_bias(pair).permute(0, 3, 1, 2))
        x = x + self.mlp(self.norm2(x))
        y = self.from_tokens(x)
        return pair + y[:, :, None] * y[:, None], x


class Folding(Listed):
    def __init__(self) -> None:
        super().__init__(WithPair)

    def forward(self, x: Tensor) -> Tensor:
        pair, x = torch.ones(len(x), x.shape[1], x.shape[1], 8), self.tap(0, x)
        for i, block in enumerate(self.blocks):
            pair, x = block(pair, x)
            x = self.tap(i + 1, x)
        return x


class Beside(Block):
    """A (B, 1, d) tensor beside the tokens: the mean of what was seen, read by the next block."""

    def forward(self, summary: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = super().forward(x + 0.1 * summary)
        return x.mean(1, keepdim=True), x


class Summaries(Listed):
    def __init__(self) -> None:
        super().__init__(Beside)

    def forward(self, x: Tensor) -> Tensor:
        summary, x = torch.zeros(len(x), 1, WIDTH), self.tap(0, x)
        for i, block in enumerate(self.blocks):
            summary, x = block(summary, x)
            x = self.tap(i + 1, x)
        return x


class Point(nn.Module):
    """TransformerLens's HookPoint: an identity that is called, so that it can be hooked."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Lens(nn.Module):
    """W_Q (h, d, d_h) and einsum, with hook points everywhere."""

    def __init__(self) -> None:
        super().__init__()
        shape, std = (HEADS, WIDTH, WIDTH // HEADS), WIDTH**-0.5
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(shape) * std) for _ in range(3))
        self.W_O = nn.Parameter(torch.randn(HEADS, WIDTH // HEADS, WIDTH) * std)
        self.ln1, self.ln2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), network()
        self.hook_resid_pre, self.hook_q, self.hook_pattern, self.hook_resid_mid, self.hook_resid_post = (
            Point() for _ in range(5)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.hook_resid_pre(x)
        y = self.ln1(x)
        q = self.hook_q(torch.einsum("bnd,hde->bnhe", y, self.W_Q))
        k, v = torch.einsum("bnd,hde->bnhe", y, self.W_K), torch.einsum("bnd,hde->bnhe", y, self.W_V)
        scores = torch.einsum("bqhe,bkhe->bhqk", q, k) / q.shape[-1] ** 0.5
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        P = self.hook_pattern(F.softmax(scores.masked_fill(ahead, -1e5), dim=-1))
        x = self.hook_resid_mid(x + torch.einsum("bhqk,bkhe,hed->bqd", P, v, self.W_O))
        return self.hook_resid_post(x + self.mlp(self.ln2(x)))


class Hooked(Listed):
    def __init__(self) -> None:
        super().__init__(Lens)
        self.embed, self.unembed = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tap(0, self.embed(ids))
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return self.unembed(x)


class Keyword(Block):
    """Tokens by name, after a mask and a flag."""

    def forward(self, mask: Any = None, flag: bool = False, *, hidden: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"flag": flag, "hidden": super().forward(hidden)}


class Keywords(Listed):
    def __init__(self) -> None:
        super().__init__(Keyword)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(None, True, hidden=x)["hidden"])
        return x


state("states in dicts", Dicts)
state("states in records", Records)
state("states in tuples", Tuples)
state("tokens by name, result in a dict", Keywords)
state("condition first (B, d)", Conditioned, inputs=lambda: (tokens(), numbers(BATCH, WIDTH, seed=2)))
state("condition first (B, 1, d)", Conditioned, inputs=lambda: (tokens(), numbers(BATCH, 1, WIDTH, seed=2)))
state("pairs first, tokens second", Folding)
state("one token beside the tokens", Summaries)
state("hook points and einsum", Hooked, inputs=words, causal=True, heads=False)
