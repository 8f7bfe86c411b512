"""Structures of models of images: tokens in parts, pixels inside of patches, queries that are pooled, merged tokens."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from tools.coverage.case import BATCH, DEPTH, HEADS, WIDTH, Case, Sample, Stream, enter, numbers
from tools.coverage.written import Attention, Block, Written, network, tapped_in, tokens, written
from torch import Tensor, nn

CLS, PATCHES, PIXELS, INNER = 3, 25, 4, 16
image: Any = partial(written, group="images", heads=False, token_axis=None)


def places(d: int = WIDTH, size: int = 8) -> Tensor:
    return tokens(n=size * size, d=d).mT.reshape(BATCH, d, size, size).contiguous()


class TwoNetworks(Written):
    """Jumbo's: the first tokens have a wide network of their own, and are cut off for it and put together again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(WIDTH), Attention(), network(), network(CLS * WIDTH)]) for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, (norm, attention, small, wide) in enumerate(self.layers):
            x = attention(norm(x)) + x
            first, rest = x.split([CLS, x.shape[1] - CLS], dim=1)
            rest = small(rest) + rest
            first = wide(first.flatten(1)).view_as(first) + first
            x = self.tap(i + 1, torch.cat([first, rest], dim=1))
        return x


class ClassReads(nn.Module):
    """XCiT's last blocks: the class token alone reads, and a norm and a network are for it alone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.kv, self.mlp = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH), network()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        k, v = self.kv(y).chunk(2, -1)
        read = (self.q(y[:, :1]) @ k.mT / WIDTH**0.5).softmax(-1) @ v
        x = x + torch.cat([read, y[:, 1:]], dim=1)
        x = torch.cat([self.norm2(x[:, :1]), x[:, 1:]], dim=1)
        return x + torch.cat([self.mlp(x[:, :1]), x[:, 1:]], dim=1)


class ThenClass(Written):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.cls = nn.ModuleList(Block() for _ in range(DEPTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.readers = nn.ModuleList(ClassReads() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for i, block in enumerate(self.readers):
            x = self.tap(DEPTH + i + 1, block(x))
        return x


class InPatches(nn.Module):
    """TNT's: pixels of each patch have a stream of their own, and are added to all patches but the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Block(INNER, 2), Block()
        self.norm, self.up = nn.LayerNorm(PIXELS * INNER), nn.Linear(PIXELS * INNER, WIDTH)

    def forward(self, pixels: Tensor, patches: Tensor) -> tuple[Tensor, Tensor]:
        pixels = self.inner(pixels)
        more = self.up(self.norm(pixels.reshape(len(patches), -1, PIXELS * INNER)))
        patches = torch.cat([patches[:, :1], patches[:, 1:] + more], dim=1)
        return pixels, self.outer(patches)


class InTransformer(Written):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.cls = nn.ModuleList(InPatches() for _ in range(DEPTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.up = nn.Linear(PIXELS * INNER, WIDTH)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.up(pixels.reshape(-1, PATCHES, PIXELS * INNER))
        patches = torch.cat([self.cls.expand(len(patches), -1, -1), patches], dim=1)
        pixels, patches = self.left_tap(0, pixels), self.right_tap(0, patches)
        for i, block in enumerate(self.blocks):
            pixels, patches = block(pixels, patches)
            pixels, patches = self.left_tap(i + 1, pixels), self.right_tap(i + 1, patches)
        return patches


class Message(nn.Module):
    """X-CLIP's: a token that all frames have talked about is beside the others for the time of attention."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames, self.block, self.talk, self.say = frames, Block(), Attention(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        told = self.say(x[:, 0]).view(-1, self.frames, WIDTH)
        told = told + self.talk(told)
        x = torch.cat([x, told.reshape(-1, 1, WIDTH)], dim=1)
        x = (x + self.block.attn(self.block.norm1(x)))[:, :n]
        return x + self.block.mlp(self.block.norm2(x))


class Blocks(Written):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.blocks):
            x = self.tap(i + 1, block(x))
        return x


class Pooled(nn.Module):
    """MViT's: queries are pooled and added to what they attend to; the skip is widened and pooled where tokens are."""

    def __init__(self, d: int = WIDTH, out: int = WIDTH, stride: int = 1) -> None:
        super().__init__()
        self.norm1, self.norm2, self.mlp, self.stride = nn.LayerNorm(d), nn.LayerNorm(out), network(out), stride
        self.qkv, self.proj = nn.Linear(d, 3 * out, bias=False), nn.Linear(out, out)
        self.pool = nn.Conv1d(out, out, 3, stride=stride, padding=1, groups=out)
        self.widen = nn.Linear(d, out) if d != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = self.qkv(y).chunk(3, -1)
        q = self.pool(q.mT).mT
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        read = F.scaled_dot_product_attention(q, k, v) + q
        skip = self.widen(y) if isinstance(self.widen, nn.Linear) else x
        skip = skip if self.stride == 1 else F.max_pool1d(skip.mT, self.stride).mT
        x = skip + self.proj(read.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Half(nn.Module):
    def __init__(self, branch: nn.Module, d: int) -> None:
        super().__init__()
        self.branch, self.norm = branch, nn.LayerNorm(d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.norm(x))


class Activated(nn.Module):
    """LeViT's: an activation between attention and its last matrix; with fewer queries it merges tokens."""

    def __init__(self, d: int, out: int = 0, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.qkv, self.out = stride, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, out or d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        read = (q[:, :, :: self.stride] @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v
        return self.out(F.hardswish(read.transpose(1, 2).flatten(2)))


class Halves(Written):
    """Two stages in one list each: attention, network, attention, network, what merges tokens, its network."""

    def __init__(self) -> None:
        super().__init__()
        d = WIDTH
        pair = [Half(Activated(d), d), Half(network(d), d), Half(Activated(d), d), Half(network(d), d)]
        wide = [Half(kind, 2 * d) for _ in range(2) for kind in (Activated(2 * d), network(2 * d))]
        merge = [Activated(d, 2 * d, stride=2), Half(network(2 * d), 2 * d)]
        self.stages = nn.ModuleList([nn.ModuleList([*pair, *merge]), nn.ModuleList(wide)])

    def forward(self, x: Tensor) -> Tensor:
        x, count = self.tap(0, x), 0
        for stage in self.stages:
            for i, layer in enumerate(stage):
                x = layer(x)
                if i in (1, 3):
                    count += 1
                    x = self.tap(count, x)
        return x


class Convolved(nn.Module):
    """MaxViT's: a convolution with a skip of its own, then windows and a grid, channels first outside."""

    def __init__(self, d: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.BatchNorm2d(d), nn.Conv2d(d, out, 3, stride=stride, padding=1), nn.GELU(),
                                  nn.Conv2d(out, out, 1))  # fmt: skip
        self.skip = nn.Conv2d(d, out, stride, stride=stride) if stride > 1 else nn.Identity()
        self.window, self.grid = Block(out), Block(out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.skip(x) + self.conv(x)
        b, d, h, w = x.shape
        x = x.permute(0, 2, 3, 1)
        cut = x.reshape(b, h // 2, 2, w // 2, 2, d)
        x = self.window(cut.transpose(2, 3).reshape(-1, 4, d)).view(b, h // 2, w // 2, 2, 2, d).transpose(2, 3)
        apart = x.reshape(b, 2, h // 2, 2, w // 2, d).permute(0, 2, 4, 1, 3, 5)
        x = self.grid(apart.reshape(-1, 4, d)).view(b, h // 2, w // 2, 2, 2, d).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(b, h, w, d).permute(0, 3, 1, 2)


class Neighbours(nn.Module):
    """PoolFormer's on images: norms of all places, means of neighbours less the place itself, scales of channels."""

    def __init__(self, d: int = WIDTH) -> None:
        super().__init__()
        self.norm1, self.norm2, self.pool = nn.GroupNorm(1, d), nn.GroupNorm(1, d), nn.AvgPool2d(3, 1, 1)
        self.mlp = nn.Sequential(nn.Conv2d(d, 2 * d, 1), nn.GELU(), nn.Conv2d(2 * d, d, 1))
        self.scale = nn.Parameter(torch.full((d, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.scale * (self.pool(y) - y)
        return x + self.scale * self.mlp(self.norm2(x))


def two_streams(name: str, stream: str) -> None:
    def build() -> Sample:
        torch.manual_seed(0)
        model = InTransformer().eval()
        streams = {kind: Stream(tapped_in(model, name=f"{kind}_tap")) for kind in ("left", "right")}
        return Sample(model, numbers(BATCH * PATCHES, PIXELS, INNER), streams, token_axis=None)

    enter(Case(name, "images", build, stream))


image("two networks for parts", TwoNetworks)
image("class token reads at the end", ThenClass)
image("message token", lambda: Blocks(*(Message(4) for _ in range(DEPTH))), inputs=lambda: tokens(12))
image("pooled queries", lambda: Blocks(Pooled(), Pooled(WIDTH, 2 * WIDTH, 2), *(Pooled(2 * WIDTH, 2 * WIDTH) for _ in
      range(2))))  # fmt: skip
image("halves with an activation", Halves)
image("convolution, windows and grid", lambda: Blocks(Convolved(16, 32, 2), Convolved(32, 32, 1), Convolved(32, 64, 2),
      Convolved(64, 64, 1)), inputs=lambda: places(16, 24), layout="b d h w")  # fmt: skip
image("pooling of images", lambda: Blocks(*(Neighbours() for _ in range(DEPTH))), inputs=places, layout="b d h w")
two_streams("pixels in patches, patches", "right")
two_streams("pixels in patches, pixels", "left")
