"""Several streams in one model written by hand: encoder and decoder, two towers."""

import torch
from tools.coverage.case import BATCH, DEPTH, HEADS, WIDTH, WORDS, Case, Sample, Stream, enter, other_last, words
from tools.coverage.written import Attention, Block, Written, network, tapped_in
from torch import Tensor, nn


class Cross(nn.Module):
    """Attention from one stream to another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.kv(memory).chunk(2, -1))
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Decoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.cross, self.mlp = Attention(causal=True), Cross(), network()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        x = x + self.cross(self.norm2(x), memory)
        return x + self.mlp(self.norm3(x))


class Pair(Written):
    """An encoder, and a decoder that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.encoder = nn.ModuleList(Block() for _ in range(DEPTH))
        self.decoder = nn.ModuleList(Decoding() for _ in range(4))

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x = self.encoder_tap(0, self.words(src))
        for i, block in enumerate(self.encoder):
            x = self.encoder_tap(i + 1, block(x))
        y = self.decoder_tap(0, self.words(tgt))
        for i, block in enumerate(self.decoder):
            y = self.decoder_tap(i + 1, block(y, x))
        return y


class Towers(Written):
    """Two encoders side by side, compared at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.patch = nn.Embedding(WORDS, WIDTH), nn.Linear(48, WIDTH)
        self.text = nn.ModuleList(Block(causal=True) for _ in range(4))
        self.vision = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, ids: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        x = self.left_tap(0, self.words(ids))
        for i, block in enumerate(self.text):
            x = self.left_tap(i + 1, block(x))
        y = self.right_tap(0, self.patch(patches))
        for i, block in enumerate(self.vision):
            y = self.right_tap(i + 1, block(y))
        return x, y


def pair() -> Sample:
    model = Pair().eval()
    given = (words(), words(n=18, seed=2))
    streams = {
        "encoder": Stream(tapped_in(model, name="encoder_tap")),
        "decoder": Stream(tapped_in(model, name="decoder_tap"), True, changed=(given[0], other_last(given[1]))),
    }
    return Sample(model, given, streams)


def towers() -> Sample:
    model = Towers().eval()
    patches = torch.randn(BATCH, 25, 48, generator=torch.Generator().manual_seed(1)) + 0.5
    given = (words(), patches)
    streams = {
        "text": Stream(tapped_in(model, name="left_tap"), True),
        "vision": Stream(tapped_in(model, name="right_tap")),
    }
    return Sample(model, given, streams, result=lambda out: torch.cat([out[0], out[1]], 1), token_axis=None)


for _name in ("encoder", "decoder"):
    enter(Case(f"encoder-decoder by hand {_name}", "several streams", pair, _name))
for _name in ("text", "vision"):
    enter(Case(f"two towers by hand {_name}", "several streams", towers, _name))
