"""Whole designs that people copy: what else is in the stream besides blocks one after another."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import BATCH, DEPTH, HEADS, TOKENS, WIDTH, Case, Sample, Stream, enter, numbers, words
from tools.coverage.cases.written_states import Listed
from tools.coverage.written import Attention, Block, Written, network, tapped_in, tokens, written
from torch import Tensor, nn

design: Any = partial(written, group="designs")


class UVit(Written):
    """U-ViT: the later blocks read earlier states too, concatenated or added."""

    def __init__(self, added: bool = False) -> None:
        super().__init__()
        self.blocks, self.added = nn.ModuleList(Block() for _ in range(DEPTH)), added
        self.joins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.tap(0, x), []
        for i, block in enumerate(self.blocks):
            if i >= 3:
                skip = kept.pop()
                x = x + skip if self.added else self.joins[i - 3](torch.cat([x, skip], -1))
            x = self.tap(i + 1, block(x))
            if i < 2:
                kept.append(x)
        return x


class Speedrun(Written):
    """modded-nanogpt's: x = a x + b x_0 before every block, values of the first block in all, squared ReLU, qk-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(100, WIDTH), nn.Linear(WIDTH, 100, bias=False)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(DEPTH))
        self.out = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(DEPTH))
        self.down = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH, bias=False) for _ in range(DEPTH))
        self.factors = nn.Parameter(torch.tensor([[0.9, 0.1]] * DEPTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = x_0 = F.rms_norm(self.words(ids), (WIDTH,))
        x, first = self.tap(0, x), None
        for i in range(DEPTH):
            x = self.factors[i, 0] * x + self.factors[i, 1] * x_0
            q, k, v = self.qkv[i](F.rms_norm(x, (WIDTH,))).view(*x.shape[:2], 3 * HEADS, -1).chunk(3, dim=2)
            first = v if first is None else first
            v = 0.5 * v + 0.5 * first
            q, k = (F.rms_norm(t, (t.shape[-1],)) for t in (q, k))
            y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            x = x + self.out[i](y.transpose(1, 2).reshape(x.shape))
            x = x + self.down[i](self.up[i](F.rms_norm(x, (WIDTH,))).relu().square())
            x = self.tap(i + 1, x)
        return 15 * torch.tanh(self.head(F.rms_norm(x, (WIDTH,))) / 15)


class DenseFormer(Listed):
    """After every block, a weighted average of all states so far."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        states = [x]
        for i, block in enumerate(self.blocks):
            states.append(self.tap(i + 1, block(x)))
            x = states[-1] * 0.7 + 0.3 * sum(states[:-1]) / (i + 1)
        return x


class Siamese(Listed):
    """One encoder, called twice: for queries and for documents."""

    def encode(self, x: Tensor, tap: Any) -> Tensor:
        x = tap(0, x)
        for i, block in enumerate(self.blocks):
            x = tap(i + 1, block(x))
        return x.mean(1)

    def forward(self, query: Tensor, document: Tensor) -> Tensor:
        a, b = self.encode(query, self.left_tap), self.encode(document, self.right_tap)
        return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


class Recycled(Listed):
    """The same three blocks, three times over."""

    def __init__(self) -> None:
        super().__init__(count=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(9):
            x = self.tap(i + 1, self.blocks[i % 3](x))
        return x


class Alternating(Written):
    """Two kinds of blocks by turns: attention with a network, attention alone."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() if i % 2 == 0 else Thin() for i in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


class Thin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(self.norm(x))


class Axial(nn.Module):
    """(B, T, S, d): attention along space, then along time, then a network."""

    def __init__(self) -> None:
        super().__init__()
        self.space, self.time, self.mlp = Attention(), Attention(), network()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.space(self.norm1(x))
        x = x + self.time(self.norm2(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm3(x))


class Deep(nn.Module):
    """A mixture of depths: the block acts on the twelve tokens that a router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.block = nn.Linear(WIDTH, 1), Block()

    def forward(self, x: Tensor) -> Tensor:
        best = self.router(x).squeeze(-1).topk(12, dim=1).indices.sort(dim=1).values[..., None].expand(-1, -1, WIDTH)
        chosen = x.gather(1, best)
        return x.scatter(1, best, self.block(chosen))


class Reversible(nn.Module):
    """Two halves of the channels: x_1 + attention(x_2), x_2 + network(x_1)."""

    def __init__(self) -> None:
        super().__init__()
        d = WIDTH // 2
        self.norm1, self.norm2, self.attn, self.mlp = nn.LayerNorm(d), nn.LayerNorm(d), Attention(d), network(d)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        a = a + self.attn(self.norm1(b))
        b = b + self.mlp(self.norm2(a))
        return torch.cat([a, b], dim=-1)


class WithMemory(nn.Module):
    """Four learned tokens join the others in every block, and leave again."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.memory = Block(), nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(torch.cat([self.memory.expand(len(x), -1, -1), x], dim=1))[:, 4:]


class Tapped(Written):
    """Blocks of one class in a list."""

    def __init__(self, kind: Any, count: int = DEPTH) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, layer in enumerate(self.layers):
            x = self.tap(i + 1, layer(x))
        return x


class ChannelsFirst(nn.Module):
    """(B, d, n) with convolutions of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.norm1, self.norm2 = nn.GroupNorm(1, WIDTH), nn.GroupNorm(1, WIDTH)
        self.mlp = nn.Sequential(nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.GELU(), nn.Conv1d(2 * WIDTH, WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(1, (HEADS, -1)) for t in self.qkv(self.norm1(x)).chunk(3, dim=1))
        P = (torch.einsum("bhdi,bhdj->bhij", q, k) * q.shape[2] ** -0.5).softmax(-1)
        x = x + self.out(torch.einsum("bhij,bhdj->bhdi", P, v).flatten(1, 2))
        return x + self.mlp(self.norm2(x))


class Torch(nn.Module):
    """nn.MultiheadAttention in a block of one's own, with its weights."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first)
        self.norm1, self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), network()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        y, _ = self.attn(y, y, y)
        x = x + y
        return x + self.mlp(self.norm2(x))


class Joint(nn.Module):
    """MMDiT's double block: texts and images with weights of their own, one attention over both."""

    def __init__(self) -> None:
        super().__init__()
        parts = [nn.ModuleDict({
            "norm1": nn.LayerNorm(WIDTH), "norm2": nn.LayerNorm(WIDTH), "qkv": nn.Linear(WIDTH, 3 * WIDTH),
            "out": nn.Linear(WIDTH, WIDTH), "mlp": network()}) for _ in range(2)]  # fmt: skip
        self.text, self.image = parts

    def forward(self, text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        qkv = [p["qkv"](p["norm1"](x)) for p, x in ((self.text, text), (self.image, image))]
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in torch.cat(qkv, 1).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        n = text.shape[1]
        text, image = text + self.text["out"](y[:, :n]), image + self.image["out"](y[:, n:])
        return text + self.text["mlp"](self.text["norm2"](text)), image + self.image["mlp"](self.image["norm2"](image))


class Flux(Written):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Joint() for _ in range(DEPTH))

    def forward(self, text: Tensor, image: Tensor) -> Tensor:
        text, image = self.left_tap(0, text), self.right_tap(0, image)
        for i, block in enumerate(self.blocks):
            text, image = block(text, image)
            text, image = self.left_tap(i + 1, text), self.right_tap(i + 1, image)
        return torch.cat([text, image], 1)


class Perceiver(Written):
    """Sixteen latents read the input in every block, and mix."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(16, WIDTH))
        self.reads = nn.ModuleList(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(DEPTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        z = self.tap(0, self.latents.expand(len(x), -1, -1))
        for i, (read, block) in enumerate(zip(self.reads, self.blocks, strict=True)):
            z = z + read(z, x, x)[0]
            z = self.tap(i + 1, block(z))
        return z


def two_streams(name: str, make: Any, inputs: Any, **more: Any) -> None:
    """One case for each of the two streams."""

    def build() -> Sample:
        model = make().eval()
        streams = {s: Stream(tapped_in(model, name=f"{s}_tap")) for s in ("left", "right")}
        return Sample(model, inputs(), streams, **more)

    for stream in ("left", "right"):
        enter(Case(f"{name} {stream}", "designs", build, stream))


design("u-vit", UVit, heads=False)
design("u-vit added", partial(UVit, True), heads=False)
design("nanogpt speedrun", Speedrun, inputs=words, causal=True, heads=False)
design("denseformer", DenseFormer, heads=False)
design("recycled blocks", Recycled)
design("two kinds of blocks by turns", Alternating, heads=False)
design("axial (B, T, S, d)", partial(Tapped, Axial), inputs=lambda: numbers(BATCH, 4, 6, WIDTH), layout="b h w d",
       token_axis=None, heads=False)  # fmt: skip
design("mixture of depths", partial(Tapped, Deep), heads=False)
design("reversible halves", partial(Tapped, Reversible), heads=False)
design("memory tokens in every block", partial(Tapped, WithMemory), heads=False)
design("channels first (B, d, n)", partial(Tapped, ChannelsFirst), inputs=lambda: tokens().mT.contiguous(),
       layout="b d n", token_axis=None, heads=False)  # fmt: skip
design("multihead attention of torch", partial(Tapped, Torch), heads=False)
design("multihead attention of torch time first", partial(Tapped, partial(Torch, False)), heads=False, layout="n b d",
       inputs=lambda: tokens().transpose(0, 1).contiguous(), token_axis=0)  # fmt: skip
design("perceiver", Perceiver, heads=False)
two_streams("mmdit", Flux, lambda: (tokens(n=10, seed=2), tokens()))
two_streams("siamese", Siamese, lambda: (tokens(n=18, seed=2), tokens(n=TOKENS)), token_axis=None)
