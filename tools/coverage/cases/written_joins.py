"""How branches join the stream: norms, factors, gates, several branches at once."""

from functools import partial
from typing import Any

import torch
from tools.coverage.case import DEPTH, HEADS, WIDTH
from tools.coverage.cases.written_attention import Plain
from tools.coverage.written import Attention, Block, Written, network, plainly, written
from torch import Tensor, nn

joined: Any = partial(written, group="joins")


class Blocks(Written):
    """Blocks of one class in a list."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tap(0, x)
        for i, layer in enumerate(self.layers):
            x = self.tap(i + 1, layer(x))
        return x


class PostNorm(Block):
    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = self.norm1(x + self.attn(x, *more))
        return self.norm2(x + self.mlp(x))


class DeepNorm(Block):
    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = self.norm1(x * 1.8 + self.attn(x))
        return self.norm2(x * 1.8 + self.mlp(x))


class Sandwich(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm3, self.norm4 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.norm3(self.attn(self.norm1(x)))
        return x + self.norm4(self.mlp(self.norm2(x)))


class BranchNorm(Block):
    """Swin V2's and OLMo 2's: the norm after the branch, before the sum."""

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.norm1(self.attn(x))
        return x + self.norm2(self.mlp(x))


class ReZero(Block):
    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.alpha * self.attn(x)
        return x + self.alpha * self.mlp(x)


class LayerScale(Block):
    """With stochastic depth, as in timm; in eval it does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma1 = nn.Parameter(0.3 + 0.1 * torch.randn(WIDTH))
        self.gamma2 = nn.Parameter(0.3 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.dropped(self.gamma1 * self.attn(self.norm1(x)))
        return x + self.dropped(self.gamma2 * self.mlp(self.norm2(x)))

    def dropped(self, x: Tensor) -> Tensor:
        return x * torch.bernoulli(torch.full((len(x), 1, 1), 0.9)) / 0.9 if self.training else x


class Parallel(Block):
    """GPT-J's and PaLM's: both branches read the same norm."""

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        y = self.norm1(x)
        return x + self.attn(y) + self.mlp(y)


class ParallelThings(nn.Module):
    """Several attentions side by side, then several networks."""

    def __init__(self) -> None:
        super().__init__()
        self.attns = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(WIDTH), "attn": Attention()}) for _ in range(2))
        self.mlps = nn.ModuleList(nn.Sequential(nn.LayerNorm(WIDTH), network()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.stack([part["attn"](part["norm"](x)) for part in self.attns]).sum(dim=0)
        return x + torch.stack([part(x) for part in self.mlps]).sum(dim=0)


class Gated(Block):
    """A gate between the stream and the branch, as in highway networks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate1, self.gate2 = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        g = torch.sigmoid(self.gate1(x))
        x = g * x + (1 - g) * self.attn(self.norm1(x))
        g = torch.sigmoid(self.gate2(x))
        return g * x + (1 - g) * self.mlp(self.norm2(x))


class InPlace(Block):
    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x.clone()
        x += self.attn(self.norm1(x))
        x += self.mlp(self.norm2(x))
        return x


class Macaron(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm0, self.mlp0 = nn.LayerNorm(WIDTH), network()

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + 0.5 * self.mlp0(self.norm0(x))
        x = x + self.attn(self.norm1(x))
        return x + 0.5 * self.mlp(self.norm2(x))


class AttentionOnly(nn.Module):
    """No network, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x)


class NoSkip(nn.Module):
    """Dong's: attention alone, no residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attn(x)


class Experts(Block):
    """A mixture of four networks, of which each token takes two."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 4), nn.ModuleList(network() for _ in range(4))

    def forward(self, x: Tensor, *more: Any) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x).reshape(-1, WIDTH)
        weights, chosen = self.router(y).softmax(-1).topk(2, dim=-1)
        out = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, rows, weights[rows, place, None] * expert(y[rows]))
        return x + out.view_as(x)


def normed_keys(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Cosine attention: queries and keys of length sqrt(d_h) each."""
    size = q.shape[-1] ** 0.5
    return plainly(nn.functional.normalize(q, dim=-1) * size, nn.functional.normalize(k, dim=-1) * size, v, bias)


class Weighted(Written):
    """Every block takes a learned mixture of the two last states, in the manner of hyper-connections."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(DEPTH))
        self.weights = nn.Parameter(torch.tensor([[0.8, 0.2]] * DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        before = x = self.tap(0, x)
        for i, layer in enumerate(self.layers):
            a, b = self.weights[i]
            mixed = a * x + b * before
            x, before = self.tap(i + 1, layer(mixed)), x
        return x


KINDS = {
    "post-norm": PostNorm, "deepnorm": DeepNorm, "sandwich": Sandwich, "norm of the branch": BranchNorm,
    "rezero": ReZero, "layerscale and droppath": LayerScale, "parallel": Parallel, "gated residual": Gated,
    "in-place sums": InPlace, "macaron": Macaron, "attention only": AttentionOnly, "no residual": NoSkip,
    "mixture of experts": Experts,
}  # fmt: skip
for _name, _kind in KINDS.items():
    joined(f"join {_name}", partial(Blocks, _kind))
joined("join several attentions at once", partial(Blocks, ParallelThings), heads=False)
joined("join weighted states", Weighted, heads=False)
joined("qk-norm", partial(Plain, mix=normed_keys), heads=False)
joined("one head", partial(Plain, h=1))
joined("many heads", partial(Plain, h=4 * HEADS))
