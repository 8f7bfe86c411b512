"""Where blocks are kept, and how they are called: the stream runs outside of what is registered."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import DEPTH, WIDTH, words
from tools.coverage.written import Attention, Block, Written, network, written
from torch import Tensor, nn

kept: Any = partial(written, group="lists")


class Normed(nn.Module):
    """PreNorm(fn): the branch with its norm inside."""

    def __init__(self, fn: nn.Module) -> None:
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(WIDTH), fn

    def forward(self, x: Tensor, **more: Any) -> Tensor:
        return self.fn(self.norm(x), **more)


class Pairs(Written):
    """for attn, ff in layers: x = attn(x) + x; x = ff(x) + x."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Normed(Attention(causal=causal)), Normed(network())]) for _ in range(DEPTH)
        )
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, (attn, ff) in enumerate(self.layers):
            x = attn(x) + x
            x = ff(x) + x
            x = self.tap(i + 1, x)
        return self.norm(x)


class ImagePairs(nn.Module):
    """The pairs inside a vision transformer: patches, a class token, positions, and a Transformer as a module."""

    def __init__(self, pool: str = "cls") -> None:
        super().__init__()
        self.to_patch = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, WIDTH), nn.LayerNorm(WIDTH))
        self.cls_token, self.pos = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Parameter(torch.randn(1, 26, WIDTH))
        self.transformer, self.pool, self.head = Pairs(), pool, nn.Linear(WIDTH, 10)

    def forward(self, image: Tensor) -> Tensor:
        b, c, h, w = image.shape
        x = image.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, 16 * c)
        x = self.to_patch(x)
        if self.pool == "cls":
            x = torch.cat([self.cls_token.expand(b, -1, -1), x], dim=1)
        x = self.transformer(x + self.pos[:, : x.shape[1]])
        return self.head(x[:, 0] if self.pool == "cls" else x.mean(dim=1))


class PairsPostNorm(Written):
    """KEEL's manner: a strong residual, the norm of the sum outside of the modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Normed(Attention()), Normed(network()), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, (attn, ff, norm1, norm2) in enumerate(self.layers):
            x = norm1(attn(x) + 2.0 * x)
            x = norm2(ff(x) + 2.0 * x)
            x = self.tap(i + 1, x)
        return x


class TwoLists(Written):
    """Attentions in one list, networks in another, post-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(Attention() for _ in range(DEPTH))
        self.networks = nn.ModuleList(network() for _ in range(DEPTH))
        self.norms1 = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))
        self.norms2 = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(DEPTH):
            x = self.norms1[i](x + self.attentions[i](x))
            x = self.norms2[i](x + self.networks[i](x))
            x = self.tap(i + 1, x)
        return x


class Flat(Written):
    """One list: attention, norm, network, norm, attention, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(DEPTH):
            self.layers.extend([Attention(), nn.LayerNorm(WIDTH), network(), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(0, len(self.layers), 2):
            x = self.layers[i + 1](x + self.layers[i](x))
            if i % 4 == 2:
                x = self.tap(i // 4 + 1, x)
        return x


class FlatPreNorm(Flat):
    """The same list, each norm before its branch: norm after it in the list."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(0, len(self.layers), 2):
            x = x + self.layers[i](self.layers[i + 1](x))
            if i % 4 == 2:
                x = self.tap(i // 4 + 1, x)
        return x


class ByWords(Written):
    """Blocks in attributes that are called one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.low, self.middle, self.high, self.higher = (Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        x = self.tap(1, self.lower(x))
        x = self.tap(2, self.low(x))
        x = self.tap(3, self.middle(x))
        x = self.tap(4, self.high(x))
        return self.tap(5, self.higher(x))


class Loop(Written):
    """Any container of blocks; `hold` says where they are."""

    def __init__(self, hold: str, **block: Any) -> None:
        super().__init__()
        blocks = [Block(**block) for _ in range(DEPTH)]
        if hold == "module dict":
            self.blocks: Any = nn.ModuleDict({f"block_{i}": b for i, b in enumerate(blocks)})
        elif hold == "module list":
            self.blocks = nn.ModuleList(blocks)
        elif hold == "numbered attributes":
            for i, block_ in enumerate(blocks):
                setattr(self, f"layer{i}", block_)
            self.blocks = [getattr(self, f"layer{i}") for i in range(DEPTH)]
        elif hold == "nested lists":
            self.blocks = nn.ModuleList([nn.ModuleList(blocks[:2]), nn.ModuleList(blocks[2:])])
        else:  # a plain list, whose modules are registered under other names
            self.register = nn.ModuleDict({name: b for name, b in zip("abcde", blocks, strict=True)})
            self.blocks = blocks if hold == "python list" else {i: b for i, b in enumerate(blocks)}
        self.hold = hold

    def all(self) -> list[nn.Module]:
        if self.hold == "nested lists":
            return [block for part in self.blocks for block in part]
        return list(self.blocks.values() if hasattr(self.blocks, "values") else self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, block in enumerate(self.all()):
            x = self.tap(i + 1, block(x))
        return x


class Universal(Written):
    """One block, called in a loop."""

    def __init__(self, halves: bool = False) -> None:
        super().__init__()
        self.block, self.halves = Block(), halves

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i in range(DEPTH):
            if self.halves:
                x = x + self.block.attn(self.block.norm1(x))
                x = x + self.block.mlp(self.block.norm2(x))
            else:
                x = self.block(x)
            x = self.tap(i + 1, x)
        return x


class Sequential(Written):
    """Blocks in nn.Sequential: the truth needs hooks between them, so it calls them one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(Tapping(self, i + 1) for i in range(DEPTH)))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.tap(0, x))


class Tapping(Block):
    """A block that hands out its own end."""

    def __init__(self, model: Written, number: int) -> None:
        super().__init__()
        self.outer, self.number = [model], number  # in a list, so that it is not registered

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        return self.outer[0].tap(self.number, super().forward(x, *more))


class Inline(Written):
    """No module is a block: parameters in lists, the whole network in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict()
        for i in range(DEPTH):
            self.parts[f"attn{i}"], self.parts[f"mlp{i}"] = Attention(), network()
            self.parts[f"norm{i}"] = nn.LayerNorm(WIDTH)
        self.words = nn.Embedding(100, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tap(0, self.words(ids))
        for i in range(DEPTH):
            y = self.parts[f"norm{i}"](x)
            x = x + self.parts[f"attn{i}"](y)
            x = x + self.parts[f"mlp{i}"](x)
            x = self.tap(i + 1, x)
        return x


def image() -> Tensor:
    return torch.randn(3, 3, 20, 20, generator=torch.Generator().manual_seed(1)) + 0.5


kept("pairs in a list", Pairs)
kept("pairs in a list causal", lambda: Pairs(causal=True), causal=True)
kept("vit of pairs, class token", ImagePairs, inputs=image, token_axis=None, holder="transformer")
kept("vit of pairs, mean", lambda: ImagePairs("mean"), inputs=image, token_axis=None, holder="transformer")
kept("pairs with the norm of the sum", PairsPostNorm)
kept("attentions and networks in two lists", TwoLists)
kept("flat list post-norm", Flat)
kept("flat list pre-norm", FlatPreNorm)
kept("blocks in words", ByWords)
for _hold in ("module list", "module dict", "numbered attributes", "nested lists", "python list", "python dict"):
    kept(f"blocks in {_hold}", partial(Loop, _hold))
kept("blocks in module list causal", partial(Loop, "module list", causal=True), causal=True)
kept("universal block", Universal)
kept("universal halves", lambda: Universal(halves=True))
kept("sequential", Sequential)
kept("all in one forward", Inline, inputs=words)
