"""Other tokens beside those of the input, and states of other shapes: images, stages, one sequence alone."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import BATCH, TOKENS, WIDTH, numbers
from tools.coverage.cases.written_states import Listed
from tools.coverage.written import Block, Written, network, tokens, written
from torch import Tensor, nn

state: Any = partial(written, group="states")


class Registers(Listed):
    """A class token and four registers in front of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.registers = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 4, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b = len(x)
        x = self.tap(0, torch.cat([self.cls.expand(b, -1, -1), self.registers.expand(b, -1, -1), x], dim=1))
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return self.norm(x)[:, 5:]


class ClassAttention(Listed):
    """CaiT's: two blocks at the end in which the class token alone reads; the stream is that of the patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.query, self.kv = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
        )
        self.mlp = network()

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        cls = self.cls.expand(len(x), -1, -1)
        k, v = self.kv(torch.cat([cls, x], 1)).chunk(2, -1)
        cls = cls + (self.query(cls) @ k.mT / WIDTH**0.5).softmax(-1) @ v
        return (cls + self.mlp(cls))[:, 0]


class Image(nn.Module):
    """A block on (B, d, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x.flatten(2).mT).mT.reshape(x.shape)


class Images(Listed):
    def __init__(self) -> None:
        super().__init__(Image)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


class Stages(Written):
    """Two stages of three blocks; between them pairs of tokens are merged, and wider where said."""

    def __init__(self, wider: int = 2) -> None:
        super().__init__()
        d = WIDTH * wider
        self.stage1 = nn.ModuleList(Block() for _ in range(3))
        self.merge = nn.Linear(2 * WIDTH, d)
        self.stage2 = nn.ModuleList(Block(d) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.stage1):
            x = self.tap(i + 1, block(x))
        x = self.merge(x.reshape(len(x), x.shape[1] // 2, -1))
        for i, block in enumerate(self.stage2):
            x = self.tap(i + 4, block(x))
        return x


class Plain(Listed):
    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


def one_sequence() -> Tensor:
    return numbers(TOKENS, WIDTH)


def images() -> Tensor:
    return tokens(n=25).mT.reshape(BATCH, WIDTH, 5, 5).contiguous()


state("class token and registers", Registers)
state("class attention at the end", ClassAttention, token_axis=None)
state("images (B, d, H, W)", Images, inputs=images, layout="b d h w", token_axis=None)
state("stages of other width and length", Stages, token_axis=None)
state("stages of other length", partial(Stages, 1), token_axis=None)
state("unbatched (n, d)", Plain, inputs=one_sequence, layout="n d", token_axis=0, heads=False)
state("one sequence (1, n, d)", Plain, inputs=lambda: tokens(1))
state("as many sequences as tokens", Plain, inputs=lambda: tokens(TOKENS))
